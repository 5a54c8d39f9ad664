//! The bare wire: two stock guests, and one thread between their queues.
//!
//! The thread passes the frames of each guest to the queue of the same number of the other guest,
//! publishes them, interrupts, and sleeps while there are none. The queues and the sessions are
//! those of the daemon. There is no switch, no counter, no share and no limit. So the process shows
//! about how fast these guests can exchange frames with a datapath in user space.
//!
//! The guests are trusted: anything unexpected ends the process.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use network::burst::Burst;
use network::fabric::PairChange;
use network::port::{QueueError, QueuePair};
use network::topology::QueueId;
use ring::GrantCopyBatch;
use ring::copy::measure::choose;
use ring::region::MemoryAccount;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use unix_socket::{Listener, Permissions};
use vhost_user::net::device::{NetDevice, Offer, QueueHost};
use vhost_user::transport::connection::{Connection, ConnectionError, Incoming};
use vhost_user::transport::error::SessionError;
use vhost_user::transport::server::listener;
use vhost_user::transport::session::Session;

use super::MOST_QUEUES;

/// Rounds of the measurement of methods of copying.
const ROUNDS: u32 = 5;

/// Bursts that may follow each other before the sockets are looked at.
const GLANCE: u32 = 1 << 10;

/// How long frames wait at most until buffers are looked for again.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// The number of the sockets among the descriptors that are watched.
const SOCKET: u64 = 0;
/// The number of the queues.
const QUEUE: u64 = 1;

/// Options of the process.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder for the two sockets
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Why the wire ended.
#[derive(Debug, thiserror::Error)]
pub enum BareWireError {
    /// A socket, or a descriptor of a queue.
    #[error("the bare wire failed: {0}")]
    Socket(#[from] io::Error),
    /// The connection of a guest.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A message of a guest.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A queue of a guest.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// The sockets that it listens on.
pub(super) fn sockets(dir: &Path) -> [PathBuf; 2] {
    ["0.sock", "1.sock"].map(|name| dir.join(name))
}

/// Serves two guests until one of them leaves.
///
/// # Errors
/// When a socket fails, or a guest does something unexpected.
pub fn run(args: &Args) -> Result<(), BareWireError> {
    // Long copies are made as those of the daemon.
    choose(ROUNDS);
    let events: Events = Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)?);
    let [a, b] = sockets(&args.folder).map(|path| End::listen(&path, &events));
    let mut ends = [a?, b?];
    let mut burst = Burst::new();
    loop {
        for _ in 0..GLANCE {
            if !exchange(&ends, &mut burst)? && !sleep(&ends, &events)? {
                break;
            }
        }
        for end in &mut ends {
            if !end.answer()? {
                return Ok(());
            }
        }
    }
}

/// What is watched while the thread sleeps.
type Events = Rc<OwnedFd>;

fn errno(errno: rustix::io::Errno) -> io::Error {
    errno.into()
}

/// Watches a descriptor. One that is watched already is no failure.
fn watch(events: &Events, fd: BorrowedFd<'_>, number: u64, flags: EventFlags) -> io::Result<()> {
    match epoll::add(&**events, fd, EventData::new_u64(number), flags) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        outcome => outcome.map_err(errno),
    }
}

/// Passes one burst of each queue to the other end. False: there was none.
fn exchange(ends: &[End; 2], burst: &mut Burst) -> Result<bool, QueueError> {
    let [a, b] = ends.each_ref().map(|end| &end.pairs);
    let mut passed = false;
    for (from, to) in [(a, b), (b, a)] {
        for index in 0..usize::from(MOST_QUEUES) {
            passed |= from.pass(to, index, burst)?;
        }
    }
    Ok(passed)
}

/// Sleeps until there is something to do, unless there is already. False: a socket says something.
fn sleep(ends: &[End; 2], events: &Events) -> Result<bool, BareWireError> {
    let mut is_quiet = true;
    for end in ends {
        is_quiet &= !end.pairs.arm()?;
    }
    let is_full = ends.iter().any(|end| end.pairs.is_full());
    let mut ready = Vec::with_capacity(32);
    if is_quiet || is_full {
        // A wait that a signal ended is begun anew.
        let _ = epoll::wait(&**events, spare_capacity(&mut ready), is_full.then_some(&PATIENCE));
    }
    ends.iter().for_each(|end| end.pairs.disarm());
    Ok(ready.iter().all(|event| event.data.u64() != SOCKET))
}

/// One end of the wire.
struct End {
    listener: Listener,
    guest: Option<(Connection, Session<NetDevice<Pairs>>)>,
    pairs: Pairs,
}

impl End {
    fn listen(path: &Path, events: &Events) -> Result<Self, BareWireError> {
        let listener =
            Listener::bind(path, listener(Permissions::default())).map_err(io::Error::other)?;
        watch(events, listener.as_fd(), SOCKET, EventFlags::IN)?;
        let pairs = Pairs { events: Rc::clone(events), pairs: Rc::default() };
        Ok(End { listener, guest: None, pairs })
    }

    /// Answers what the guest has said. False: it has left.
    fn answer(&mut self) -> Result<bool, BareWireError> {
        if self.guest.is_none()
            && let Some(socket) = self.listener.accept()?
        {
            watch(&self.pairs.events, socket.as_fd(), SOCKET, EventFlags::IN)?;
            let offer = Offer { queues: MOST_QUEUES, mtu: None };
            let device = NetDevice::new(self.pairs.clone(), offer);
            let session = Session::new(device, Arc::new(MemoryAccount::new(u64::MAX)));
            self.guest = Some((Connection::new(socket), session));
        }
        let Some((connection, session)) = &mut self.guest else { return Ok(true) };
        loop {
            let message = match connection.read()? {
                Incoming::Message(message) => message,
                Incoming::Nothing => return Ok(true),
                Incoming::End => return Ok(false),
            };
            let answer = session.answer(&message.header, &message.payload, message.fds);
            match (answer.reply, answer.file) {
                (Some(reply), Some(file)) => connection.send_with_file(&reply, file)?,
                (Some(reply), None) => connection.send(&reply)?,
                (None, _) => {}
            }
            if let Some(error) = answer.error.filter(|_| answer.closes) {
                return Err(error.into());
            }
        }
    }
}

/// The queue pairs of one guest, by their numbers.
#[derive(Clone)]
struct Pairs {
    events: Events,
    pairs: Rc<RefCell<[Option<Pair>; MOST_QUEUES as usize]>>,
}

/// A queue pair.
struct Pair {
    queues: Box<dyn QueuePair>,
    /// Whether the guest receives by it.
    receives: bool,
    /// A frame found no buffer there.
    is_full: bool,
}

impl Pairs {
    /// Passes a burst of pair `index` to the pair of the other guest with that number, or to its
    /// first one. False: there were no frames, or no room for them.
    fn pass(&self, other: &Pairs, index: usize, burst: &mut Burst) -> Result<bool, QueueError> {
        let (mut from, mut to) = (self.pairs.borrow_mut(), other.pairs.borrow_mut());
        let Some(from) = &mut from[index] else { return Ok(false) };
        burst.reset();
        from.queues.fetch(burst)?;
        let count = burst.frames().len();
        if count == 0 {
            return Ok(false);
        }
        let receives = |pair: &Option<Pair>| pair.as_ref().is_some_and(|pair| pair.receives);
        let index = if receives(&to[index]) { index } else { 0 };
        let mut done = count;
        // Frames for a guest that is not ready are dropped.
        if let Some(to) = to[index].as_mut().filter(|pair| pair.receives) {
            let mut copies = GrantCopyBatch::new();
            to.queues.prepare(count)?;
            let (put, end) = to.queues.put_run(burst, 0..count, false, &mut copies);
            to.is_full = end? == ring::Put::Full;
            // A frame that the receiver cannot take at all is dropped.
            done = if to.is_full { put } else { (put + 1).min(count) };
            to.queues.flush()?;
        }
        from.queues.rewind(count - done);
        from.queues.complete(done);
        from.queues.flush()?;
        Ok(done > 0)
    }

    /// Asks for notifications. True: there is something to do already.
    fn arm(&self) -> Result<bool, QueueError> {
        let mut ready = false;
        for pair in self.pairs.borrow_mut().iter_mut().flatten() {
            ready |= pair.queues.arm(pair.is_full)?;
        }
        Ok(ready)
    }

    /// Whether frames wait with their sender for buffers of this guest.
    fn is_full(&self) -> bool {
        self.pairs.borrow().iter().flatten().any(|pair| pair.is_full)
    }

    fn disarm(&self) {
        self.pairs.borrow_mut().iter_mut().flatten().for_each(|pair| pair.queues.disarm());
    }
}

impl QueueHost for Pairs {
    fn take_out(&self, queues: &[QueueId]) -> Vec<Option<Box<dyn QueuePair>>> {
        let mut pairs = self.pairs.borrow_mut();
        let take = |queue: &QueueId| Some(pairs.get_mut(queue.0 as usize)?.take()?.queues);
        queues.iter().map(take).collect()
    }

    fn put_back(&self, changes: Vec<PairChange>) -> Vec<Option<QueueId>> {
        let mut pairs = self.pairs.borrow_mut();
        let put = |PairChange { index, pair, .. }: PairChange| {
            let (queues, receives) = pair?;
            for waker in queues.wakers().into_iter().flatten() {
                watch(&self.events, waker, QUEUE, EventFlags::IN | EventFlags::ET).ok()?;
            }
            *pairs.get_mut(usize::from(index))? = Some(Pair { queues, receives, is_full: false });
            Some(QueueId(index.into()))
        };
        changes.into_iter().map(put).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn generated_frames_arrive_intact() {
        for options in [
            "--size 64 --queues 2 --direction both --interrupts",
            "--size 9000 --tso --window 1 --interrupts",
            "--size 1514 --queues 4 --packed --interrupts",
        ] {
            let dir = tempfile::tempdir().unwrap();
            let args = Args { folder: dir.path().to_owned() };
            let [a, b] = sockets(dir.path()).map(|path| path.display().to_string());
            let wire = std::thread::spawn(move || run(&args));
            while !Path::new(&b).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let line = format!("--ports {a},{b} {options} --duration 0.1 --warm-up 0");
            let args = load::Args::from_words(line.split_whitespace()).unwrap();
            let report = load::run(&args).unwrap();
            let received: u64 = report.directions.iter().map(|direction| direction.received).sum();
            assert!(report.is_right() && report.lost() == 0 && received > 0, "{report}");
            wire.join().unwrap().unwrap();
        }
    }
}
