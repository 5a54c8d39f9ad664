//! The store, over xenstored's socket or the kernel's `/dev/xen/xenbus`.
//!
//! One request is under way at a time: the kernel's device does not repeat a request's number in
//! all of its answers. A thread reads answers, hands them to whoever waits, and tells watches of
//! their events.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::wire::{self, Header, Kind, Stream};
use super::{OpenError, open_device};
use crate::store::{Ends, Nodes, OnChange, Permission, Store, StoreError, Transaction, Watch};

const SOCKET: &str = "/run/xenstored/socket";
const DEVICE: &str = "/dev/xen/xenbus";

/// A connection to the store.
#[derive(Debug)]
pub struct XenStore {
    view: View,
    /// Written to end the reader.
    stop: Arc<OwnedFd>,
    reader: Option<JoinHandle<()>>,
}

impl XenStore {
    /// Connects: to xenstored's socket if it runs here, to the kernel's device otherwise.
    ///
    /// # Errors
    /// When neither is there.
    pub fn open() -> Result<Self, OpenError> {
        let socket = UnixStream::connect(SOCKET);
        let end = match socket {
            Ok(socket) => OwnedFd::from(socket),
            Err(_) => return Self::open_device(),
        };
        Ok(Self::over(end)?)
    }

    /// Connects to the kernel's device.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open_device() -> Result<Self, OpenError> {
        Ok(Self::over(open_device(DEVICE)?)?)
    }

    /// Talks to the store over `end`.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn over(end: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&end, true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let link = Arc::new(Link {
            end,
            asking: Mutex::new(0),
            answer: Mutex::new(Answer::None),
            answered: Condvar::new(),
            watches: Mutex::new(Watches::default()),
        });
        let (for_reader, stopped) = (link.clone(), stop.clone());
        let reader =
            thread::Builder::new().name("store".into()).spawn(move || for_reader.read(&stopped))?;
        Ok(Self { view: View { link, transaction: 0 }, stop, reader: Some(reader) })
    }
}

impl Drop for XenStore {
    fn drop(&mut self) {
        // An eventfd that nobody else writes takes this.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(reader) =
            self.reader.take().filter(|reader| reader.thread().id() != thread::current().id())
        {
            let _ = reader.join();
        }
    }
}

/// Both directions of the connection.
#[derive(Debug)]
struct Link {
    end: OwnedFd,
    /// Held by the one who asks: the number of the last request.
    asking: Mutex<u32>,
    answer: Mutex<Answer>,
    answered: Condvar,
    watches: Mutex<Watches>,
}

/// What the one who asks waits for.
#[derive(Debug)]
enum Answer {
    /// Nobody waits.
    None,
    /// The answer to this request.
    Awaited(Kind, u32),
    /// Here it is: an error's name or what was asked for.
    Here(Result<Vec<u8>, Vec<u8>>),
    /// None will come any more.
    Lost(&'static str),
}

#[derive(Default)]
struct Watches {
    /// The number that the next watch gets.
    next: u64,
    /// By token.
    told: HashMap<String, Arc<OnChange>>,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.told.keys()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Asks one thing, and waits for the answer.
    fn ask(
        &self,
        kind: Kind,
        transaction: u32,
        path: &str,
        payload: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let mut last = lock(&self.asking);
        // Never 0, which the kernel's device gives to what has no number.
        *last = last.checked_add(1).unwrap_or(1);
        let too_long = || StoreError::TooLong { path: path.into() };
        let message = wire::message(kind, *last, transaction, payload).ok_or_else(too_long)?;
        {
            let mut answer = lock(&self.answer);
            if let Answer::Lost(why) = *answer {
                return Err(lost(why));
            }
            *answer = Answer::Awaited(kind, *last);
        }
        self.send(&message).inspect_err(|_| {
            // Half a message may be on its way: nothing that follows would be understood.
            *lock(&self.answer) = Answer::Lost("a request could not be sent");
        })?;
        let waiting = |answer: &mut Answer| matches!(answer, Answer::Awaited(..));
        let answered = self.answered.wait_while(lock(&self.answer), waiting);
        let mut answer = answered.unwrap_or_else(PoisonError::into_inner);
        if let Answer::Lost(why) = *answer {
            return Err(lost(why));
        }
        match std::mem::replace(&mut *answer, Answer::None) {
            Answer::Here(outcome) => outcome.map_err(|name| wire::error(&name, path)),
            _ => Err(StoreError::Protocol("no answer")),
        }
    }

    fn send(&self, mut message: &[u8]) -> Result<(), StoreError> {
        while !message.is_empty() {
            match rustix::io::write(&self.end, message) {
                Ok(sent) => message = message.get(sent..).unwrap_or_default(),
                Err(rustix::io::Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&self.end, PollFlags::OUT)], None);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(StoreError::Lost(error.into())),
            }
        }
        Ok(())
    }

    /// What the reader's thread does.
    fn read(&self, stop: &OwnedFd) {
        let why = match self.read_all(stop) {
            Ok(()) => "the connection was closed",
            Err(StoreError::Protocol(what)) => what,
            Err(_) => "the connection failed",
        };
        *lock(&self.answer) = Answer::Lost(why);
        self.answered.notify_all();
    }

    fn read_all(&self, stop: &OwnedFd) -> Result<(), StoreError> {
        let mut stream = Stream::default();
        let mut bytes = [0; 4096];
        loop {
            let mut fds = [
                PollFd::new(&self.end, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(StoreError::Lost(error.into())),
            }
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
            match rustix::io::read(&self.end, &mut bytes) {
                Ok(0) => return Ok(()),
                Ok(got) => stream.extend(bytes.get(..got).unwrap_or_default()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(StoreError::Lost(error.into())),
            }
            while let Some((header, payload)) = stream.next()? {
                self.take(header, payload)?;
            }
        }
    }

    fn take(&self, header: Header, payload: Vec<u8>) -> Result<(), StoreError> {
        if header.kind == Kind::Event as u32 {
            self.tell(&payload);
            return Ok(());
        }
        let mut answer = lock(&self.answer);
        let Answer::Awaited(kind, request) = *answer else {
            return Err(StoreError::Protocol("an answer that nobody asked for"));
        };
        // For watches, the kernel's device does not repeat the number.
        let numbered = !matches!(kind, Kind::Watch | Kind::Unwatch);
        if header.request != request && (numbered || header.request != 0) {
            return Err(StoreError::Protocol("an answer to another request"));
        }
        *answer = match header.kind {
            is if is == Kind::Error as u32 => Answer::Here(Err(payload)),
            is if is == kind as u32 => Answer::Here(Ok(payload)),
            _ => return Err(StoreError::Protocol("an answer of another kind")),
        };
        self.answered.notify_all();
        Ok(())
    }

    /// Tells a watch of an event: path and token. One that is just ending gets no more.
    fn tell(&self, payload: &[u8]) {
        let mut parts = wire::split(payload);
        let (Some(path), Some(token)) = (parts.next(), parts.next()) else { return };
        let told = lock(&self.watches).told.get(&token).cloned();
        if let Some(on_change) = told {
            on_change(&path);
        }
    }
}

fn lost(why: &'static str) -> StoreError {
    StoreError::Lost(io::Error::new(io::ErrorKind::NotConnected, why))
}

fn refused(path: &str) -> StoreError {
    StoreError::Refused { path: path.into(), name: "EINVAL".into() }
}

/// The nodes as one transaction has them, or, as number 0, as they are.
#[derive(Debug)]
struct View {
    link: Arc<Link>,
    transaction: u32,
}

impl View {
    fn ask(&self, kind: Kind, path: &str) -> Result<Vec<u8>, StoreError> {
        self.ask_with(kind, path, &[])
    }

    fn ask_with(&self, kind: Kind, path: &str, more: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut payload = wire::strings(&[path]).ok_or_else(|| refused(path))?;
        payload.extend_from_slice(more);
        self.link.ask(kind, self.transaction, path, &payload)
    }

    /// A directory that is too long for one answer. It begins anew when the directory changes
    /// between two pieces.
    fn long_directory(&self, path: &str) -> Result<Vec<String>, StoreError> {
        let (mut names, mut seen): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        loop {
            let payload =
                wire::strings(&[path, &names.len().to_string()]).ok_or_else(|| refused(path))?;
            let part = self.link.ask(Kind::DirectoryPart, self.transaction, path, &payload)?;
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
        let number = link.ask(Kind::Start, 0, "a transaction", b"\0")?;
        let number = wire::split(&number).next().and_then(|number| number.parse().ok());
        let transaction = number.ok_or(StoreError::Protocol("a transaction without a number"))?;
        Ok(Box::new(Started { view: View { link: link.clone(), transaction }, open: true }))
    }

    fn watch(&self, path: &str, on_change: OnChange) -> Result<Watch, StoreError> {
        let token = {
            let mut watches = lock(&self.view.link.watches);
            watches.next += 1;
            let token = watches.next.to_string();
            // Before it is asked for: its first event may come before the answer.
            watches.told.insert(token.clone(), Arc::new(on_change));
            token
        };
        let watching = Watching { link: self.view.link.clone(), path: path.into(), token };
        // Refused, it is dropped, and forgotten again.
        watching.ask(Kind::Watch)?;
        Ok(Watch::new(Box::new(watching)))
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
        self.view.link.ask(Kind::End, self.view.transaction, "a transaction", payload).map(drop)
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
            // It fails only when the store is lost, and the transaction with it.
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
        self.link.ask(kind, 0, &self.path, &payload).map(drop)
    }
}

impl Ends for Watching {}

impl Drop for Watching {
    fn drop(&mut self) {
        lock(&self.link.watches).told.remove(&self.token);
        // It fails for a watch that the store did not take, and when the store is lost.
        let _ = self.ask(Kind::Unwatch);
    }
}

#[cfg(test)]
mod tests;
