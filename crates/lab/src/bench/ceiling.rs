//! The ceiling: a back-end that is nothing but two rings and a copy.
//!
//! The bridge serves two vhost-user sockets from one polling thread and lays a bare [`Wire`]
//! between their queues: no switch, no table, no checks, no prefetching. Its rate on a machine is
//! about the cost of the copy and of passing cache lines between the CPUs there. The code is naive
//! on purpose, so a good switch may be faster.
//!
//! The front-ends are the generator's and are trusted: anything unexpected ends the connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use ring::copy::measure::measure;
use ring::copy::method::set_method;
use ring::region::RegionSpec;
use ring::wire::Wire;
use ring::{Memory, RingConfig, Violation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;
use unix_socket::{Listener, Permissions};
use vhost_user::net::feature::bit;
use vhost_user::transport::connection::{Connection, ConnectionError, Incoming, Message};
use vhost_user::transport::feature::protocol;
use vhost_user::transport::message::{BadMessage, Region, Reply, Request, RingAddress};
use vhost_user::transport::server::listener;

use super::BenchError;
use load::cpu;

/// Frames that are carried at a time.
const BURST: u16 = 64;

/// Passes of the polling loop from one look at the sockets to the next.
const GLANCE: u32 = 1 << 14;

/// Rounds of the measurement of methods of copying.
const ROUNDS: u32 = 5;

/// Queue pairs that are offered.
const QUEUES: u64 = 16;

/// The features that are offered: just what the generator's points ask for.
const FEATURES: u64 = bit::VERSION_1
    | bit::PROTOCOL_FEATURES
    | bit::MRG_RXBUF
    | bit::MQ
    | bit::CSUM
    | bit::GUEST_CSUM
    | bit::HOST_TSO4
    | bit::GUEST_TSO4;

/// The running copier, which ends when this value is dropped.
pub struct Ceiling {
    dir: TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Why a pair of connections ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Message(#[from] BadMessage),
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Ring(#[from] Violation),
    #[error(transparent)]
    Memory(#[from] ring::MapError),
    #[error("{0}")]
    Unexpected(&'static str),
}

impl Ceiling {
    /// Starts it on a CPU, with two sockets that it listens on.
    ///
    /// # Errors
    /// When the sockets or the thread cannot be created.
    pub fn start(cpu: usize) -> Result<Self, BenchError> {
        // Long copies are made as those of the daemon.
        for measured in measure(ROUNDS) {
            set_method(measured.class, measured.best());
        }
        let failed = |what| move |source| BenchError::Start { what, source };
        let dir = tempfile::Builder::new()
            .prefix("ringmain-wire-")
            .tempdir()
            .map_err(failed("make a folder"))?;
        let listen = |path: PathBuf| {
            Listener::bind(&path, listener(Permissions::default())).map_err(io::Error::other)
        };
        let [a, b] = sockets(dir.path());
        let listeners = [listen(a), listen(b)];
        let [a, b] = listeners.map(|listener| listener.map_err(failed("listen")));
        let (doors, stop) = ([a?, b?], Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&stop);
        let run = move || {
            // The generator reports a CPU that it cannot be pinned to, and also fails.
            let _ = cpu::pin(cpu);
            while !asked.load(Relaxed) {
                // The generator reports the end of a connection.
                let _ = serve(&doors, &asked);
            }
        };
        let thread = std::thread::Builder::new()
            .name("wire".into())
            .spawn(run)
            .map_err(failed("start a thread"))?;
        Ok(Self { dir, stop, thread: Some(thread) })
    }

    /// The sockets that it listens on.
    pub fn sockets(&self) -> [PathBuf; 2] {
        sockets(self.dir.path())
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // Errors and panics are ignored: nothing is left to report them to.
            let _ = thread.join();
        }
    }
}

fn sockets(dir: &Path) -> [PathBuf; 2] {
    ["a.sock", "b.sock"].map(|name| dir.join(name))
}

/// Serves two front-ends, which come one after the other, until one of them leaves.
fn serve(doors: &[Listener; 2], stop: &AtomicBool) -> Result<(), End> {
    let mut guests = [None, None];
    let mut wires = Vec::new();
    while !stop.load(Relaxed) {
        let mut changed = false;
        for (guest, door) in guests.iter_mut().zip(doors) {
            changed |= match guest {
                Some(guest) => Guest::listen(guest)?,
                None => {
                    *guest = door.accept()?.map(Guest::new);
                    false
                }
            };
        }
        if let ([Some(a), Some(b)], true) = (&guests, changed) {
            wires = between(a, b)?;
        }
        match wires.is_empty() {
            true => wait(doors, &guests),
            false => carry(&mut wires)?,
        }
    }
    Ok(())
}

/// Carries frames, until it is time to look at the sockets again.
fn carry(wires: &mut [Wire]) -> Result<(), End> {
    for _ in 0..GLANCE {
        for wire in &mut *wires {
            wire.carry(BURST)?;
        }
    }
    Ok(())
}

/// Waits until a front-end comes, or says something.
fn wait(doors: &[Listener; 2], guests: &[Option<Guest>; 2]) {
    let fds: [BorrowedFd<'_>; 2] = std::array::from_fn(|at| match &guests[at] {
        Some(guest) => guest.connection.as_fd(),
        None => doors[at].as_fd(),
    });
    let mut ready = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let nap = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    // After a signal, the sockets are looked at as after an event.
    let _ = poll(&mut ready, Some(&nap));
}

/// Links between all rings that exist, in both directions.
fn between(a: &Guest, b: &Guest) -> Result<Vec<Wire>, End> {
    let mut wires = Vec::new();
    for (from, to) in [(a, b), (b, a)] {
        for pair in 0..from.rings.len() / 2 {
            if let (Some(tx), Some(rx)) = (from.ring(2 * pair + 1)?, to.ring(2 * pair)?) {
                wires.push(Wire::new((tx.0, &tx.1), (rx.0, &rx.1))?);
            }
        }
    }
    Ok(wires)
}

/// One front-end, and what it has said.
struct Guest {
    connection: Connection,
    memory: Option<Arc<Memory>>,
    rings: Vec<Ring>,
}

/// The messages about one ring.
#[derive(Clone, Copy, Default)]
struct Ring {
    size: u16,
    start: u32,
    address: Option<RingAddress>,
    enabled: bool,
}

impl Guest {
    fn new(socket: OwnedFd) -> Self {
        Self { connection: Connection::new(socket), memory: None, rings: Vec::new() }
    }

    /// Answers the messages since the last call; true if a ring has become ready.
    fn listen(&mut self) -> Result<bool, End> {
        let mut changed = false;
        loop {
            match self.connection.read()? {
                Incoming::Message(message) => changed |= self.answer(message)?,
                Incoming::Nothing => return Ok(changed),
                Incoming::End => return Err(End::Unexpected("the front-end left")),
            }
        }
    }

    fn answer(&mut self, message: Message) -> Result<bool, End> {
        let Message { header, payload, fds } = message;
        let request = Request::parse(&header, &payload, fds.len())?;
        let changed = matches!(request, Request::SetVringEnable(..));
        let reply = match request {
            Request::GetFeatures => Some(FEATURES),
            Request::GetProtocolFeatures => Some(protocol::MQ | protocol::REPLY_ACK),
            Request::GetQueueNum => Some(QUEUES),
            Request::SetMemTable(regions) => {
                self.memory = Some(Arc::new(map(regions, fds)?));
                None
            }
            Request::SetVringNum(ring, size) => self.set(ring, |ring| ring.size = size),
            Request::SetVringBase(ring, start) => self.set(ring, |ring| ring.start = start),
            Request::SetVringAddr(ring, address) => {
                self.set(ring, |ring| ring.address = Some(address))
            }
            Request::SetVringEnable(ring, enabled) => self.set(ring, |ring| ring.enabled = enabled),
            _ => None,
        };
        // A front-end that waits for its answers says nothing while there is traffic: rings do not
        // change then.
        if let Some(number) = reply.or(header.need_reply.then_some(0)) {
            self.connection.send(&Reply::Number(number).encode(header.code))?;
        }
        Ok(changed)
    }

    fn set(&mut self, ring: u8, change: impl FnOnce(&mut Ring)) -> Option<u64> {
        let index = usize::from(ring);
        if self.rings.len() <= index {
            self.rings.resize(index + 1, Ring::default());
        }
        change(&mut self.rings[index]);
        None
    }

    /// Ring number `index`, if it is set up completely.
    fn ring(&self, index: usize) -> Result<Option<(Arc<Memory>, RingConfig)>, End> {
        let Some((ring, memory)) =
            self.rings.get(index).filter(|ring| ring.enabled).zip(self.memory.as_ref())
        else {
            return Ok(None);
        };
        let Some(address) = ring.address else { return Ok(None) };
        let place =
            |user| memory.user_to_guest(user).ok_or(End::Unexpected("a ring is nowhere in memory"));
        let config = RingConfig {
            size: ring.size,
            desc: place(address.desc)?,
            driver: place(address.avail)?,
            device: place(address.used)?,
            event_idx: false,
            indirect: false,
            start: ring.start,
        };
        Ok(Some((Arc::clone(memory), config)))
    }
}

fn map(regions: Vec<Region>, fds: Vec<OwnedFd>) -> Result<Memory, ring::MapError> {
    let spec = |(region, fd): (Region, OwnedFd)| RegionSpec {
        guest_addr: region.guest_addr,
        user_addr: region.user_addr,
        len: region.len,
        offset: region.offset,
        fd,
    };
    Memory::map(regions.into_iter().zip(fds).map(spec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_frames_arrive_intact_in_every_run() {
        let ceiling = Ceiling::start(0).unwrap();
        let [a, b] = ceiling.sockets().map(|path| path.display().to_string());
        for options in ["--size 64 --queues 2 --direction both", "--size 9000 --tso --window 1"] {
            let line = format!("--ports {a},{b} {options} --duration 0.1 --warm-up 0");
            let args = load::Args::from_words(line.split_whitespace()).unwrap();
            let report = load::run(&args).unwrap();
            let received: u64 = report.directions.iter().map(|direction| direction.received).sum();
            assert!(report.is_right() && report.lost() == 0 && received > 0, "{report}");
        }
    }
}
