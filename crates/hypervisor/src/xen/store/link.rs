//! The connection to the store: requests in one direction, answers and events in the other.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::store::{OnChange, StoreError};
use crate::xen::wire::{self, Header, Kind, Stream};

/// Time between two attempts to connect again.
const RETRY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Longest wait for the answer to a repeated watch request.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Connects to the store again.
pub type Reopen = fn() -> io::Result<OwnedFd>;

/// Both directions of the connection.
#[derive(Debug)]
pub struct Link {
    /// Locked by the thread that sends a request, until the answer is there.
    asking: Mutex<Asking>,
    /// How to connect again; `None`: a connection that is lost stays lost.
    reopen: Option<Reopen>,
    answer: Mutex<Answer>,
    answered: Condvar,
    watches: Mutex<Watches>,
}

/// The state that a request needs.
#[derive(Debug)]
struct Asking {
    end: Arc<OwnedFd>,
    /// The number of the last request.
    last: u32,
    /// The number of this connection: transactions end with theirs.
    connection: u64,
}

/// The transaction that a request belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Within {
    /// The store's number for it.
    pub transaction: u32,
    /// The connection on which it was started.
    pub connection: u64,
}

/// How reading ended.
enum Ended {
    /// The other end closed the connection.
    Closed,
    /// The connection is not needed any more.
    Stopped,
}

/// The answer that the sender of the last request waits for.
#[derive(Debug)]
enum Answer {
    /// No thread waits.
    None,
    /// The answer to this request.
    Awaited(Kind, u32),
    /// The answer has come: the payload, or the name of an error.
    Here(Result<Vec<u8>, Vec<u8>>),
    /// No answer will come any more.
    Lost(&'static str),
}

#[derive(Default)]
struct Watches {
    /// The number that the next watch gets.
    next: u64,
    /// By token: the path, and what is called.
    callbacks: HashMap<String, (String, Arc<OnChange>)>,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.callbacks.keys()).finish()
    }
}

impl Link {
    /// The connection over `end`, which does not block.
    pub fn new(end: OwnedFd, reopen: Option<Reopen>) -> Self {
        Link {
            asking: Mutex::new(Asking { end: Arc::new(end), last: 0, connection: 0 }),
            reopen,
            answer: Mutex::new(Answer::None),
            answered: Condvar::new(),
            watches: Mutex::default(),
        }
    }

    /// Registers the callback of a watch. Returns the watch's token.
    pub fn add_watch(&self, path: &str, on_change: OnChange) -> String {
        let mut watches = self.watches.lock();
        watches.next += 1;
        let token = watches.next.to_string();
        watches.callbacks.insert(token.clone(), (path.into(), Arc::new(on_change)));
        token
    }

    /// Forgets a watch.
    pub fn remove_watch(&self, token: &str) {
        self.watches.lock().callbacks.remove(token);
    }

    #[cfg(test)]
    pub fn has_no_watches(&self) -> bool {
        self.watches.lock().callbacks.is_empty()
    }

    /// The number of the connection.
    pub fn connection(&self) -> u64 {
        self.asking.lock().connection
    }

    /// Sends one request, and waits for the answer.
    pub fn ask(
        &self,
        kind: Kind,
        within: Option<Within>,
        path: &str,
        payload: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let mut asking = self.asking.lock();
        if within.is_some_and(|within| within.connection != asking.connection) {
            return Err(lost("the connection of the transaction was lost"));
        }
        let transaction = within.map_or(0, |within| within.transaction);
        // The number is never 0, which the kernel's device uses for messages without a number.
        asking.last = asking.last.checked_add(1).unwrap_or(1);
        let last = asking.last;
        let too_long = || StoreError::TooLong { path: path.into() };
        let message = wire::message(kind, last, transaction, payload).ok_or_else(too_long)?;
        {
            let mut answer = self.answer.lock();
            if let Answer::Lost(why) = *answer {
                return Err(lost(why));
            }
            *answer = Answer::Awaited(kind, last);
        }
        send(&asking.end, &message).inspect_err(|_| {
            // Half a message may have been sent, so later messages would not be understood.
            *self.answer.lock() = Answer::Lost("a request could not be sent");
        })?;
        let waiting = |answer: &mut Answer| matches!(answer, Answer::Awaited(..));
        let mut answer = self.answer.lock();
        self.answered.wait_while(&mut answer, waiting);
        if let Answer::Lost(why) = *answer {
            return Err(lost(why));
        }
        match std::mem::replace(&mut *answer, Answer::None) {
            Answer::Here(outcome) => outcome.map_err(|name| wire::error(&name, path)),
            _ => Err(StoreError::Protocol("no answer")),
        }
    }

    /// The end of the connection that answers are read from.
    pub fn end(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.asking.lock().end)
    }

    /// The loop of the reader's thread, which starts with this end.
    pub fn read(&self, mut end: Arc<OwnedFd>, stop: &OwnedFd) {
        let mut stream = Stream::default();
        loop {
            let ended = self.read_all(&end, &mut stream, stop);
            let why = match ended {
                Ok(_) => "the connection was closed",
                Err(StoreError::Protocol(what)) => what,
                Err(_) => "the connection failed",
            };
            *self.answer.lock() = Answer::Lost(why);
            self.answered.notify_all();
            if matches!(ended, Ok(Ended::Stopped)) {
                return;
            }
            self.notify_all();
            let Some(reopen) = self.reopen else { return };
            match self.connect_again(reopen, stop) {
                Some((again, rest)) => (end, stream) = (again, rest),
                None => return,
            }
        }
    }

    /// Connects again, as soon as that is possible, and registers all watches, each of which is
    /// called once by that. `None`: the connection is not needed any more.
    fn connect_again(&self, reopen: Reopen, stop: &OwnedFd) -> Option<(Arc<OwnedFd>, Stream)> {
        loop {
            let opened =
                reopen().map_err(StoreError::Lost).and_then(|end| self.watch_again(end, stop));
            if let Ok((end, stream)) = opened {
                let mut asking = self.asking.lock();
                asking.end = Arc::clone(&end);
                asking.connection += 1;
                *self.answer.lock() = Answer::None;
                return Some((end, stream));
            }
            let mut fds = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
            // An interruption only shortens the pause.
            let _ = poll(&mut fds, Some(&RETRY));
            if !fds[0].revents().is_empty() {
                return None;
            }
        }
    }

    /// Registers all watches on a new connection, which has no other user yet.
    fn watch_again(
        &self,
        end: OwnedFd,
        stop: &OwnedFd,
    ) -> Result<(Arc<OwnedFd>, Stream), StoreError> {
        rustix::io::ioctl_fionbio(&end, true).map_err(|error| StoreError::Lost(error.into()))?;
        let watches: Vec<(String, String)> = self
            .watches
            .lock()
            .callbacks
            .iter()
            .map(|(token, (path, _))| (path.clone(), token.clone()))
            .collect();
        let mut stream = Stream::default();
        for (path, token) in watches {
            let payload = wire::strings(&[&path, &token]);
            let message = payload.and_then(|payload| wire::message(Kind::Watch, 1, 0, &payload));
            send(&end, &message.ok_or(StoreError::Protocol("a watch that is too long"))?)?;
            while !self.is_answered(&end, &mut stream, stop)? {}
        }
        Ok((Arc::new(end), stream))
    }

    /// Takes one message: the answer to a watch, or an event. A watch that the store refuses stays
    /// registered, and gets no more events.
    fn is_answered(
        &self,
        end: &OwnedFd,
        stream: &mut Stream,
        stop: &OwnedFd,
    ) -> Result<bool, StoreError> {
        loop {
            if let Some((header, payload)) = stream.next()? {
                if header.kind == Kind::Event as u32 {
                    self.notify(&payload);
                    return Ok(false);
                }
                return Ok(true);
            }
            match receive(end, stream, stop, Some(&PATIENCE))? {
                None => {}
                Some(Ended::Stopped) => return Err(lost("nobody needs the connection any more")),
                Some(Ended::Closed) => {
                    return Err(StoreError::Lost(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        }
    }

    fn read_all(
        &self,
        end: &OwnedFd,
        stream: &mut Stream,
        stop: &OwnedFd,
    ) -> Result<Ended, StoreError> {
        loop {
            while let Some((header, payload)) = stream.next()? {
                self.take(header, payload)?;
            }
            if let Some(ended) = receive(end, stream, stop, None)? {
                return Ok(ended);
            }
        }
    }

    fn take(&self, header: Header, payload: Vec<u8>) -> Result<(), StoreError> {
        if header.kind == Kind::Event as u32 {
            self.notify(&payload);
            return Ok(());
        }
        let mut answer = self.answer.lock();
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

    /// Calls the watch that an event (path and token) is for. A watch that is just ending is not
    /// called.
    fn notify(&self, payload: &[u8]) {
        let mut parts = wire::split(payload);
        let (Some(path), Some(token)) = (parts.next(), parts.next()) else { return };
        let callback = self.watches.lock().callbacks.get(&token).cloned();
        if let Some((_, on_change)) = callback {
            on_change(&path);
        }
    }

    /// Calls all watches, so that their owners learn that the connection is lost even if nothing
    /// changes in the store.
    fn notify_all(&self) {
        let callbacks: Vec<_> = self.watches.lock().callbacks.values().cloned().collect();
        for (path, on_change) in callbacks {
            on_change(&path);
        }
    }
}

fn send(end: &OwnedFd, mut message: &[u8]) -> Result<(), StoreError> {
    while !message.is_empty() {
        match rustix::io::write(end, message) {
            Ok(sent) => message = message.get(sent..).unwrap_or_default(),
            Err(rustix::io::Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(end, PollFlags::OUT)], None);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(StoreError::Lost(error.into())),
        }
    }
    Ok(())
}

/// Waits for data, for at most `patience`, and reads it. `Some`: no more data will come.
fn receive(
    end: &OwnedFd,
    stream: &mut Stream,
    stop: &OwnedFd,
    patience: Option<&Timespec>,
) -> Result<Option<Ended>, StoreError> {
    let mut fds = [end, stop].map(|fd| PollFd::new(fd, PollFlags::IN));
    match poll(&mut fds, patience) {
        Ok(0) => return Err(StoreError::Lost(io::ErrorKind::TimedOut.into())),
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(StoreError::Lost(error.into())),
    }
    if !fds[1].revents().is_empty() {
        return Ok(Some(Ended::Stopped));
    }
    let mut bytes = [0; 4096];
    match rustix::io::read(end, &mut bytes) {
        Ok(0) => return Ok(Some(Ended::Closed)),
        Ok(got) => stream.extend(bytes.get(..got).unwrap_or_default()),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
        Err(error) => return Err(StoreError::Lost(error.into())),
    }
    Ok(None)
}

fn lost(why: &'static str) -> StoreError {
    StoreError::Lost(io::Error::new(io::ErrorKind::NotConnected, why))
}
