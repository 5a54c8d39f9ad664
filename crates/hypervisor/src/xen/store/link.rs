//! The connection to the store: requests in one direction, answers and events in the other.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};

use crate::store::{OnChange, StoreError};
use crate::xen::wire::{self, Header, Kind, Stream};

/// Both directions of the connection.
#[derive(Debug)]
pub struct Link {
    end: OwnedFd,
    /// Locked by whoever sends a request, until the answer is there: the number of the last
    /// request.
    asking: Mutex<u32>,
    answer: Mutex<Answer>,
    answered: Condvar,
    watches: Mutex<Watches>,
}

/// The answer that the sender of the last request waits for.
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
    callbacks: HashMap<String, Arc<OnChange>>,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.callbacks.keys()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// The connection over `end`, which does not block.
    pub fn new(end: OwnedFd) -> Self {
        Link {
            end,
            asking: Mutex::new(0),
            answer: Mutex::new(Answer::None),
            answered: Condvar::new(),
            watches: Mutex::default(),
        }
    }

    /// Keeps what a watch calls, and returns the watch's token.
    pub fn add_watch(&self, on_change: OnChange) -> String {
        let mut watches = lock(&self.watches);
        watches.next += 1;
        let token = watches.next.to_string();
        watches.callbacks.insert(token.clone(), Arc::new(on_change));
        token
    }

    /// Forgets a watch.
    pub fn remove_watch(&self, token: &str) {
        lock(&self.watches).callbacks.remove(token);
    }

    #[cfg(test)]
    pub fn has_no_watches(&self) -> bool {
        lock(&self.watches).callbacks.is_empty()
    }

    /// Asks one thing, and waits for the answer.
    pub fn ask(
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

    /// The loop of the reader's thread.
    pub fn read(&self, stop: &OwnedFd) {
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
            self.notify(&payload);
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

    /// Calls the watch that an event (path and token) is for. One that is just ending gets no more.
    fn notify(&self, payload: &[u8]) {
        let mut parts = wire::split(payload);
        let (Some(path), Some(token)) = (parts.next(), parts.next()) else { return };
        let callback = lock(&self.watches).callbacks.get(&token).cloned();
        if let Some(on_change) = callback {
            on_change(&path);
        }
    }
}

fn lost(why: &'static str) -> StoreError {
    StoreError::Lost(io::Error::new(io::ErrorKind::NotConnected, why))
}
