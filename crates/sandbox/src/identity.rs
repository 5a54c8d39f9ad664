//! Users and groups: names, and the change from root to an ordinary user.

use std::io;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// A name that the system's databases do not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no {kind} {name:?} on this host; create it, or give its number")]
pub struct UnknownName {
    kind: &'static str,
    name: String,
}

/// A user that the daemon can run as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The name, or the number where it has none.
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
        if let Ok(Some(user)) = nix::unistd::User::from_name(name) {
            let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
            return Ok(User { name: user.name, uid, gid });
        }
        let unknown = || UnknownName { kind: "user", name: name.to_owned() };
        // The highest number stands for none at all.
        let uid = name.parse().ok().filter(|uid| *uid != u32::MAX).ok_or_else(unknown)?;
        let known = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
        let gid = known.map_or(uid, |user| user.gid.as_raw());
        Ok(User { name: name.to_owned(), uid, gid })
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
        if let Ok(Some(group)) = nix::unistd::Group::from_name(name) {
            return Ok(Group(group.gid.as_raw()));
        }
        let number = name.parse().ok().filter(|gid| *gid != u32::MAX);
        number.map(Group).ok_or_else(|| UnknownName { kind: "group", name: name.to_owned() })
    }
}

/// Changes the calling thread to another user. Permitted capabilities are kept, and none is
/// effective afterwards.
pub(crate) fn change_to(user: &User, groups: &[Group]) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(group.0)).collect();
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_keep_capabilities(true)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
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
