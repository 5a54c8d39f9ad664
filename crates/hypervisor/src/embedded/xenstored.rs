//! One domain's connection to the store, over a socket: the server's half of the protocol that
//! [`crate::xen`] speaks.
//!
//! The domain may be hostile: the number of its watches and transactions is bounded, and so is the
//! amount of data that it has not read. Requests take locks that all domains share, so a domain
//! that causes much work has to wait for its answers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::store::DomainStore;
use super::store_usage::StoreAccount;
use super::sync::lock;
use super::throttle::Throttle;
use crate::store::{Nodes, Permission, Store, StoreError, Transaction, Watch};
use crate::xen::wire::{self, Header, Kind, PAYLOAD, Stream};

/// Most watches, and most transactions, of one domain.
const WATCHES: usize = 128;
const TRANSACTIONS: usize = 10;

/// Cost of a request beside the nodes that it looks at and the watches that it concerns.
const REQUEST: u64 = 10;

/// The time in which a domain earns one unit of work: 100 000 units in a second are a few per cent
/// of a CPU. Up to two seconds' worth may be used at once.
const UNIT: Duration = Duration::from_micros(10);
const BURST: Duration = Duration::from_secs(2);

/// Most events that wait to be sent. The connection of a domain that lets more accumulate is
/// closed.
const EVENTS: usize = 1024;

/// Events that wait to be sent.
#[derive(Debug)]
struct Outbox {
    events: Mutex<Events>,
    waker: OwnedFd,
}

/// Each is a path and a token, each followed by a NUL.
#[derive(Debug, Default)]
struct Events {
    /// In the order in which they came.
    queue: VecDeque<Vec<u8>>,
    /// The same events as a set, for the lookup.
    known: HashSet<Vec<u8>>,
}

impl Outbox {
    fn add(&self, event: Vec<u8>) {
        let mut events = lock(&self.events);
        // The same event waits already.
        if events.queue.len() <= EVENTS && events.known.insert(event.clone()) {
            events.queue.push_back(event);
            let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
        }
    }

    /// The waiting events. `None`: there are too many.
    fn take(&self) -> Option<VecDeque<Vec<u8>>> {
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        let Events { queue, .. } = std::mem::take(&mut *lock(&self.events));
        (queue.len() <= EVENTS).then_some(queue)
    }
}

/// A connection.
struct Connection<'a> {
    end: OwnedFd,
    stop: BorrowedFd<'a>,
    store: &'a DomainStore,
    account: &'a StoreAccount,
    throttle: Throttle,
    outbox: Arc<Outbox>,
    watches: HashMap<Vec<u8>, Watch>,
    transactions: HashMap<u32, Box<dyn Transaction + 'a>>,
    last: u32,
}

/// Serves a connection until the other end closes it, breaks the protocol, or `stop` becomes
/// readable. Its requests are counted in `account`.
///
/// # Errors
/// When the kernel has no descriptor left, or the connection fails.
pub fn serve(
    end: OwnedFd,
    store: &DomainStore,
    account: &StoreAccount,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&end, true)?;
    let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let outbox = Arc::new(Outbox { events: Mutex::default(), waker });
    let (watches, transactions) = (HashMap::new(), HashMap::new());
    let throttle = Throttle::new(UNIT, BURST, Instant::now());
    Connection { end, stop, store, account, throttle, outbox, watches, transactions, last: 0 }.run()
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now))
        .is_ok_and(|ready| ready > 0)
}

fn ended() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

impl Connection<'_> {
    fn run(mut self) -> io::Result<()> {
        let mut stream = Stream::default();
        let mut bytes = [0; PAYLOAD];
        loop {
            let mut fds = [
                PollFd::new(&self.end, PollFlags::IN),
                PollFd::new(&self.outbox.waker, PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop, PollFlags::IN),
            ];
            // An interrupted wait counts as one without events.
            let _ = poll(&mut fds, None);
            if !fds[2].revents().is_empty() {
                return Ok(());
            }
            for event in self.outbox.take().ok_or_else(ended)? {
                self.send(Kind::Event as u32, 0, &event)?;
            }
            match rustix::io::read(&self.end, &mut bytes) {
                Ok(0) => return Ok(()),
                Ok(got) => stream.extend(bytes.get(..got).unwrap_or_default()),
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            while let Some((header, payload)) = stream.next().map_err(io::Error::other)? {
                let outcome = self.answer(header, &payload);
                self.charge(&outcome)?;
                match outcome {
                    Ok(answer) => self.send(header.kind, header.request, &answer)?,
                    Err(error) => self.send(Kind::Error as u32, header.request, &name(&error))?,
                }
            }
        }
    }

    /// Counts a request, and waits as long as it cost too much.
    fn charge(&mut self, outcome: &Result<Vec<u8>, StoreError>) -> io::Result<()> {
        self.account.asked(matches!(outcome, Err(StoreError::Quota { .. })));
        let now = Instant::now();
        let wait = self.throttle.spend(REQUEST + self.store.take_work(), now);
        let until = now + wait;
        self.account.throttled(wait);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.stop, PollFlags::IN)], Some(&left));
            if is_readable(self.stop) {
                return Err(ended());
            }
        }
    }

    /// Sends a message. A domain that does not read its answers blocks only this thread.
    fn send(&self, kind: u32, request: u32, payload: &[u8]) -> io::Result<()> {
        let header = Header { kind, request, transaction: 0, len: payload.len() as u32 };
        let message = [&header.encode(), payload].concat();
        let mut left = &*message;
        while !left.is_empty() {
            match rustix::net::send(&self.end, left, SendFlags::NOSIGNAL) {
                Ok(sent) => left = left.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut fds = [
                        PollFd::new(&self.end, PollFlags::OUT),
                        PollFd::from_borrowed_fd(self.stop, PollFlags::IN),
                    ];
                    let _ = poll(&mut fds, None);
                    if !fds[1].revents().is_empty() {
                        return Err(ended());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn answer(&mut self, header: Header, payload: &[u8]) -> Result<Vec<u8>, StoreError> {
        let is = |kind: Kind| header.kind == kind as u32;
        if is(Kind::Watch) || is(Kind::Unwatch) {
            return self.watch(is(Kind::Watch), payload);
        }
        if is(Kind::Start) {
            return self.start();
        }
        if is(Kind::End) {
            let begun =
                self.transactions.remove(&header.transaction).ok_or_else(|| invalid("ENOENT"))?;
            let commit = payload.first() == Some(&b'T');
            return if commit { begun.commit() } else { Ok(()) }.map(|()| done());
        }
        let nodes = match header.transaction {
            0 => self.store.nodes(),
            number => self.transactions.get(&number).ok_or_else(|| invalid("ENOENT"))?.nodes(),
        };
        about_nodes(nodes, header.kind, payload)
    }

    fn watch(&mut self, begin: bool, payload: &[u8]) -> Result<Vec<u8>, StoreError> {
        if !begin {
            return self.watches.remove(payload).map(|_| done()).ok_or_else(|| invalid("ENOENT"));
        }
        let mut parts = wire::split(payload);
        let (Some(path), Some(token)) = (parts.next(), parts.next()) else {
            return Err(invalid("EINVAL"));
        };
        if self.watches.contains_key(payload) {
            return Err(invalid("EEXIST"));
        }
        if self.watches.len() >= WATCHES {
            return Err(StoreError::Quota { path });
        }
        let outbox = Arc::clone(&self.outbox);
        let told = move |path: &str| outbox.add(format!("{path}\0{token}\0").into_bytes());
        let watch = self.store.watch(&path, Box::new(told))?;
        self.watches.insert(payload.to_vec(), watch);
        Ok(done())
    }

    fn start(&mut self) -> Result<Vec<u8>, StoreError> {
        if self.transactions.len() >= TRANSACTIONS {
            return Err(StoreError::Quota { path: "a transaction".into() });
        }
        // Never 0, and never the number of an open transaction.
        let under_way = |number: &u32| *number == 0 || self.transactions.contains_key(number);
        let mut number = self.last.wrapping_add(1);
        while under_way(&number) {
            number = number.wrapping_add(1);
        }
        self.last = number;
        self.transactions.insert(number, self.store.begin()?);
        Ok(format!("{number}\0").into_bytes())
    }
}

fn about_nodes(nodes: &dyn Nodes, kind: u32, payload: &[u8]) -> Result<Vec<u8>, StoreError> {
    let end = payload.iter().position(|byte| *byte == 0).unwrap_or(payload.len());
    let path = payload
        .get(..end)
        .and_then(|path| std::str::from_utf8(path).ok())
        .ok_or_else(|| invalid("EINVAL"))?;
    let rest = payload.get(end + 1..).unwrap_or_default();
    let is = |wanted: Kind| kind == wanted as u32;
    if is(Kind::Read) {
        nodes.read(path)
    } else if is(Kind::Write) {
        nodes.write(path, rest).map(|()| done())
    } else if is(Kind::Make) {
        nodes.make(path).map(|()| done())
    } else if is(Kind::Remove) {
        nodes.remove(path).map(|()| done())
    } else if is(Kind::Directory) {
        let list = names(nodes, path)?;
        if list.len() > PAYLOAD { Err(StoreError::TooLong { path: path.into() }) } else { Ok(list) }
    } else if is(Kind::DirectoryPart) {
        directory_part(&names(nodes, path)?, rest)
    } else if is(Kind::GetPermissions) {
        Ok(nodes
            .permissions(path)?
            .iter()
            .flat_map(|entry| format!("{entry}\0").into_bytes())
            .collect())
    } else if is(Kind::SetPermissions) {
        let set: Option<Vec<Permission>> = wire::permissions(rest);
        nodes.set_permissions(path, &set.ok_or_else(|| invalid("EINVAL"))?).map(|()| done())
    } else {
        Err(invalid("ENOSYS"))
    }
}

/// The names in a directory, each followed by a NUL.
fn names(nodes: &dyn Nodes, path: &str) -> Result<Vec<u8>, StoreError> {
    Ok(nodes.directory(path)?.iter().flat_map(|name| format!("{name}\0").into_bytes()).collect())
}

/// A part of a list, behind a generation that changes whenever the list does.
fn directory_part(list: &[u8], offset: &[u8]) -> Result<Vec<u8>, StoreError> {
    let offset = wire::split(offset).next().and_then(|offset| offset.parse::<usize>().ok());
    let left = offset.and_then(|offset| list.get(offset..)).ok_or_else(|| invalid("EINVAL"))?;
    let hash = list.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let generation = format!("{hash}\0").into_bytes();
    let room = PAYLOAD - generation.len() - 1;
    let piece = left.get(..room.min(left.len())).unwrap_or_default();
    let piece = piece
        .get(..piece.iter().rposition(|byte| *byte == 0).map_or(0, |end| end + 1))
        .unwrap_or_default();
    let last: &[u8] = if piece.len() == left.len() { b"\0" } else { b"" };
    Ok([&generation, piece, last].concat())
}

fn done() -> Vec<u8> {
    b"OK\0".to_vec()
}

fn invalid(name: &str) -> StoreError {
    StoreError::Refused { path: String::new(), name: name.into() }
}

/// The name of an error on the wire.
fn name(error: &StoreError) -> Vec<u8> {
    let name = match error {
        StoreError::NotFound { .. } => "ENOENT",
        StoreError::Denied { .. } => "EACCES",
        StoreError::Again => "EAGAIN",
        StoreError::TooLong { .. } => "E2BIG",
        StoreError::Quota { .. } => "ENOSPC",
        StoreError::Refused { name, .. } => name,
        StoreError::Value { .. }
        | StoreError::Protocol(_)
        | StoreError::Emptied
        | StoreError::Lost(_) => "EIO",
    };
    format!("{name}\0").into_bytes()
}

#[cfg(test)]
mod tests;
