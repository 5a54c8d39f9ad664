//! Users and groups: names, and the change from root to an ordinary user.

use std::collections::BTreeMap;
use std::io;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{
    Gid, Uid, getpid, getppid, kill_process, parent_process_death_signal,
    set_parent_process_death_signal,
};
use rustix::thread::{
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// A name that the system's databases do not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no {kind} {name:?} {}", hint(*.sealed))]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    /// Whether the databases are out of reach.
    sealed: bool,
}

fn hint(sealed: bool) -> &'static str {
    match sealed {
        false => "on this host; create it, or give its number",
        true => "among the names that were known at the start; give its number",
    }
}

/// Most users, and most groups, that are remembered by name.
const MOST_NAMES: usize = 1024;

/// The names that this process has looked up.
///
/// The system's databases are out of reach in the sandbox. The C library may load libraries to ask
/// them, which ends a process in the sandbox. Names that were looked up before stay known.
struct Names {
    sealed: bool,
    users: BTreeMap<String, User>,
    groups: BTreeMap<String, Group>,
}

static NAMES: Mutex<Names> =
    Mutex::new(Names { sealed: false, users: BTreeMap::new(), groups: BTreeMap::new() });

impl Names {
    /// Whether another name is remembered beside `others` names. The number is limited, because a
    /// client may give any number of names.
    fn remembers(&self, others: usize) -> bool {
        !self.sealed && others < MOST_NAMES
    }
}

fn names() -> MutexGuard<'static, Names> {
    NAMES.lock()
}

/// Ends lookups: from then on, only the names that were looked up before are known.
pub(crate) fn seal() {
    names().sealed = true;
}

/// The number that a name denotes. The highest number is refused, because it stands for no user.
fn number(name: &str) -> Option<u32> {
    name.parse().ok().filter(|number| *number != u32::MAX)
}

/// A user that the daemon can run as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The name, or the number of a user without a name.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
}

impl User {
    /// Looks up a user by name or number.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn find(name: &str) -> Result<User, UnknownName> {
        let mut names = names();
        let known = names.users.get(name).cloned();
        let found = known.or_else(|| User::look_up(name, names.sealed));
        let found = found.ok_or_else(|| UnknownName {
            kind: "user",
            name: name.to_owned(),
            sealed: names.sealed,
        })?;
        if names.remembers(names.users.len()) {
            names.users.insert(name.to_owned(), found.clone());
        }
        Ok(found)
    }

    fn look_up(name: &str, sealed: bool) -> Option<User> {
        let named = if sealed { None } else { nix::unistd::User::from_name(name).ok().flatten() };
        if let Some(user) = named {
            let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
            return Some(User { name: user.name, uid, gid });
        }
        let uid = number(name)?;
        let known = || nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
        let known = if sealed { None } else { known() };
        Some(User { name: name.to_owned(), uid, gid: known.map_or(uid, |user| user.gid.as_raw()) })
    }

    /// The user of this process.
    pub fn current() -> User {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let known = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
        User { name: known.map_or_else(|| uid.to_string(), |user| user.name), uid, gid }
    }
}

/// The owner of a file, by name or number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(pub u32);

impl Owner {
    /// Looks up a user by name or number.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn find(name: &str) -> Result<Owner, UnknownName> {
        User::find(name).map(|user| Owner(user.uid))
    }
}

/// A group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group(pub u32);

impl Group {
    /// Looks up a group by name or number.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn find(name: &str) -> Result<Group, UnknownName> {
        let mut names = names();
        let sealed = names.sealed;
        let named = || nix::unistd::Group::from_name(name).ok().flatten();
        let known = names.groups.get(name).copied();
        let found = known
            .or_else(|| if sealed { None } else { named() }.map(|group| Group(group.gid.as_raw())))
            .or_else(|| number(name).map(Group));
        let unknown = || UnknownName { kind: "group", name: name.to_owned(), sealed };
        let found = found.ok_or_else(unknown)?;
        if names.remembers(names.groups.len()) {
            names.groups.insert(name.to_owned(), found);
        }
        Ok(found)
    }
}

/// Changes the calling thread to another user. Permitted capabilities are kept, and none is
/// effective afterwards. The signal that the thread gets when its parent ends is kept, too: the
/// kernel forgets it when the user changes.
pub(crate) fn change_to(user: &User, groups: &[Group]) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(group.0)).collect();
    let (parent, signal) = (getppid(), parent_process_death_signal()?);
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_keep_capabilities(true)?;
    set_thread_res_uid(uid, uid, uid)?;
    set_parent_process_death_signal(signal)?;
    match signal {
        // The parent ended meanwhile.
        Some(signal) if getppid() != parent => Ok(kill_process(getpid(), signal)?),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_users_and_groups() {
        assert_eq!(User::find("4000123").unwrap().uid, 4_000_123);
        assert_eq!(Group::find("4000123"), Ok(Group(4_000_123)));
        let error = User::find("no such user").unwrap_err().to_string();
        assert!(error.starts_with("there is no user \"no such user\""), "{error}");
        assert!(Group::find("4294967295").is_err() && Owner::find("-1").is_err());
    }
}
