//! The store, over xenstored's socket or the kernel's `/dev/xen/xenbus`.
//!
//! Only one request is in flight at a time, because the kernel's device does not repeat a request's
//! number in all of its answers. A thread reads answers, hands them to the requesting thread, and
//! calls watches for their events.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use link::{Link, Reopen, Within};
use rustix::event::{EventfdFlags, eventfd};

use super::wire::{self, Kind};
use super::{Claim, OpenError, open_device};
use crate::store::{Ends, Nodes, OnChange, Permission, Store, StoreError, Transaction, Watch};

mod link;

const SOCKET: &str = "/run/xenstored/socket";
const DEVICE: &str = "/dev/xen/xenbus";

/// A connection to the store.
#[derive(Debug)]
pub struct XenStore {
    view: View,
    /// Written to end the reader.
    stop: Arc<OwnedFd>,
    reader: Option<JoinHandle<()>>,
    /// Held as long as the connection.
    _claim: Option<Claim>,
}

impl XenStore {
    /// Connects: to xenstored's socket if it runs here, to the kernel's device otherwise. If a
    /// connection to the socket is lost, it is made again, with all watches; the kernel maintains
    /// the other kind.
    ///
    /// # Errors
    /// When neither exists.
    pub fn open() -> Result<Self, OpenError> {
        let connect = || UnixStream::connect(SOCKET).map(OwnedFd::from);
        match connect() {
            Ok(end) => Ok(Self::with(end, Some(connect))?),
            Err(_) => Self::open_device(),
        }
    }

    /// Connects to the kernel's device.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn open_device() -> Result<Self, OpenError> {
        Ok(Self::over(open_device(DEVICE)?)?)
    }

    /// Talks to the store over `end`.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn over(end: OwnedFd) -> io::Result<Self> {
        Self::with(end, None)
    }

    /// The same; when the connection is lost, `reopen` makes another, and watches go on.
    pub(crate) fn with(end: OwnedFd, reopen: Option<Reopen>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&end, true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let link = Arc::new(Link::new(end, reopen));
        let (for_reader, stopped) = (link.clone(), stop.clone());
        // The end is taken before the thread starts, since a first request holds the lock until the
        // thread reads its answer.
        let end = link.end();
        let reader = thread::Builder::new()
            .name("store".into())
            .spawn(move || for_reader.read(end, &stopped))?;
        Ok(Self { view: View { link, within: None }, stop, reader: Some(reader), _claim: None })
    }

    /// The same, holding a claim, if there is one, until it is dropped.
    pub(super) fn held_with(mut self, claim: Option<Claim>) -> Self {
        self._claim = claim;
        self
    }
}

impl Drop for XenStore {
    fn drop(&mut self) {
        // The eventfd has no other writer, so the write succeeds.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(reader) =
            self.reader.take().filter(|reader| reader.thread().id() != thread::current().id())
        {
            let _ = reader.join();
        }
    }
}

fn refused(path: &str) -> StoreError {
    StoreError::Refused { path: path.into(), name: "EINVAL".into() }
}

/// The nodes as one transaction has them, or, without one, as they are.
#[derive(Debug)]
struct View {
    link: Arc<Link>,
    within: Option<Within>,
}

impl View {
    fn ask(&self, kind: Kind, path: &str) -> Result<Vec<u8>, StoreError> {
        self.ask_with(kind, path, &[])
    }

    fn ask_with(&self, kind: Kind, path: &str, more: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut payload = wire::strings(&[path]).ok_or_else(|| refused(path))?;
        payload.extend_from_slice(more);
        self.link.ask(kind, self.within, path, &payload)
    }

    /// Reads a directory that is too long for one answer. Reading starts again if the directory
    /// changes between two pieces.
    fn long_directory(&self, path: &str) -> Result<Vec<String>, StoreError> {
        let (mut names, mut seen): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        loop {
            let payload =
                wire::strings(&[path, &names.len().to_string()]).ok_or_else(|| refused(path))?;
            let part = self.link.ask(Kind::DirectoryPart, self.within, path, &payload)?;
            let bad = StoreError::Protocol("a piece of a directory that is none");
            let (generation, more, last) = wire::directory_part(&part).ok_or(bad)?;
            if !names.is_empty() && generation != seen {
                names.clear();
                continue;
            }
            seen = generation.into();
            names.extend_from_slice(more);
            if last {
                return Ok(wire::split(&names).collect());
            }
            if more.is_empty() {
                return Err(StoreError::Protocol("an empty piece of a directory"));
            }
        }
    }
}

impl Nodes for View {
    fn read(&self, path: &str) -> Result<Vec<u8>, StoreError> {
        self.ask(Kind::Read, path)
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.ask_with(Kind::Write, path, value).map(drop)
    }

    fn make(&self, path: &str) -> Result<(), StoreError> {
        self.ask(Kind::Make, path).map(drop)
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.ask(Kind::Remove, path).map(drop)
    }

    fn directory(&self, path: &str) -> Result<Vec<String>, StoreError> {
        match self.ask(Kind::Directory, path) {
            Ok(list) => Ok(wire::split(&list).collect()),
            Err(StoreError::TooLong { .. }) => self.long_directory(path),
            Err(error) => Err(error),
        }
    }

    fn permissions(&self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let list = self.ask(Kind::GetPermissions, path)?;
        wire::permissions(&list).ok_or(StoreError::Protocol("permissions that are none"))
    }

    fn set_permissions(&self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        let more: String = permissions.iter().map(|permission| format!("{permission}\0")).collect();
        self.ask_with(Kind::SetPermissions, path, more.as_bytes()).map(drop)
    }
}

impl Store for XenStore {
    fn begin(&self) -> Result<Box<dyn Transaction + '_>, StoreError> {
        let link = &self.view.link;
        let connection = link.connection();
        let number = link.ask(Kind::Start, None, "a transaction", b"\0")?;
        let number = wire::split(&number).next().and_then(|number| number.parse().ok());
        let transaction = number.ok_or(StoreError::Protocol("a transaction without a number"))?;
        Ok(Box::new(Started {
            view: View { link: link.clone(), within: Some(Within { transaction, connection }) },
            open: true,
        }))
    }

    fn watch(&self, path: &str, on_change: OnChange) -> Result<Watch, StoreError> {
        // The watch is added before the request, since its first event may come before the answer.
        let token = self.view.link.add_watch(path, on_change);
        let watching = Watching { link: self.view.link.clone(), path: path.into(), token };
        // If the store refuses, the watch is dropped, and so removed again.
        match watching.ask(Kind::Watch) {
            // The connection was made again in between, with all watches.
            Err(StoreError::Refused { name, .. }) if name == "EEXIST" => {}
            asked => asked?,
        }
        Ok(Watch::new(Box::new(watching)))
    }

    fn losses(&self) -> u64 {
        self.view.link.connection()
    }

    fn nodes(&self) -> &dyn Nodes {
        &self.view
    }
}

/// A transaction that was started.
#[derive(Debug)]
struct Started {
    view: View,
    open: bool,
}

impl Started {
    fn end(&mut self, commit: bool) -> Result<(), StoreError> {
        self.open = false;
        let payload: &[u8] = if commit { b"T\0" } else { b"F\0" };
        self.view.link.ask(Kind::End, self.view.within, "a transaction", payload).map(drop)
    }
}

impl Transaction for Started {
    fn commit(mut self: Box<Self>) -> Result<(), StoreError> {
        self.end(true)
    }

    fn nodes(&self) -> &dyn Nodes {
        &self.view
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.open {
            // The call fails only when the store is lost, and the transaction with it.
            let _ = self.end(false);
        }
    }
}

/// A watch. Ends when it is dropped.
#[derive(Debug)]
struct Watching {
    link: Arc<Link>,
    path: String,
    token: String,
}

impl Watching {
    fn ask(&self, kind: Kind) -> Result<(), StoreError> {
        let payload =
            wire::strings(&[&self.path, &self.token]).ok_or_else(|| refused(&self.path))?;
        self.link.ask(kind, None, &self.path, &payload).map(drop)
    }
}

impl Ends for Watching {}

impl Drop for Watching {
    fn drop(&mut self) {
        self.link.remove_watch(&self.token);
        // The call fails for a watch that the store did not take, and when the store is lost.
        let _ = self.ask(Kind::Unwatch);
    }
}

#[cfg(test)]
mod tests;
