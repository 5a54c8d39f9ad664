//! The server of the bare copy: two sockets, one thread.
//!
//! The front-ends are the generator's and are trusted: anything unexpected ends the connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use load::cpu;
use ring::copy::measure::choose;
use ring::region::RegionSpec;
use ring::wire::Wire;
use ring::{Memory, RingConfig, Violation};
use rustix::event::{PollFd, PollFlags, poll};
use unix_socket::{Listener, Permissions};
use vhost_user::net::feature::bit;
use vhost_user::transport::connection::{Connection, ConnectionError, Incoming, Message};
use vhost_user::transport::feature::protocol;
use vhost_user::transport::message::{BadMessage, Region, Reply, Request, RingAddress};
use vhost_user::transport::server::listener;

use super::{Args, sockets};

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

/// Serves pairs of front-ends for ever.
///
/// # Errors
/// When the sockets cannot be made.
pub(super) fn run(args: &Args) -> io::Result<()> {
    // Long copies are made as those of the daemon.
    choose(ROUNDS);
    let [a, b] = sockets(&args.folder).map(|path| {
        Listener::bind(&path, listener(Permissions::default())).map_err(io::Error::other)
    });
    let doors = [a?, b?];
    // The generator reports a CPU that it cannot be pinned to, and also fails.
    let _ = cpu::pin(args.cpu);
    loop {
        // The generator reports the end of a connection.
        let _ = serve(&doors, args.sleep);
    }
}

/// Serves two front-ends, which come one after the other, until one of them leaves.
fn serve(doors: &[Listener; 2], sleep: bool) -> Result<(), End> {
    let mut guests = [None, None];
    let mut links = Vec::new();
    loop {
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
            links = between(a, b)?;
        }
        match links.is_empty() {
            true => _ = wait(doors, &guests, &[]),
            false if sleep => carry_and_sleep(&mut links, doors, &guests)?,
            false => carry(&mut links)?,
        }
    }
}

/// Carries frames, until it is time to look at the sockets again.
fn carry(links: &mut [Link]) -> Result<(), End> {
    for _ in 0..GLANCE {
        for link in &mut *links {
            link.wire.carry(BURST)?;
        }
    }
    Ok(())
}

/// Carries frames, and sleeps while there are none, until it is time to look at the sockets again.
fn carry_and_sleep(
    links: &mut [Link],
    doors: &[Listener; 2],
    guests: &[Option<Guest>; 2],
) -> Result<(), End> {
    loop {
        let mut carried = 0;
        for link in &mut *links {
            carried += link.carry_and_interrupt()?;
        }
        if carried > 0 {
            continue;
        }
        let ready = links.iter().filter(|link| link.wire.want_notifications(true)).count();
        let is_time = ready == 0 && wait(doors, guests, links);
        for link in &*links {
            link.wire.want_notifications(false);
        }
        if is_time {
            return Ok(());
        }
    }
}

/// Waits for a notification of a link, or for a front-end. True: one has come, or says something.
fn wait(doors: &[Listener; 2], guests: &[Option<Guest>; 2], links: &[Link]) -> bool {
    let sockets: [BorrowedFd<'_>; 2] = std::array::from_fn(|at| match &guests[at] {
        Some(guest) => guest.connection.as_fd(),
        None => doors[at].as_fd(),
    });
    let kicks = links.iter().flat_map(|link| &link.kicks);
    let fds = sockets.into_iter().chain(kicks.clone().map(|kick| kick.as_fd()));
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // A wait that a signal ended is begun anew.
    let _ = poll(&mut fds, None);
    let (sockets, events) = fds.split_at(sockets.len());
    for (event, kick) in events.iter().zip(kicks) {
        if !event.revents().is_empty() {
            // A count that somebody else has read means the same.
            let _ = rustix::io::read(kick, &mut [0u8; 8]);
        }
    }
    sockets.iter().any(|socket| !socket.revents().is_empty())
}

/// A wire, and what its ends are told by.
struct Link {
    wire: Wire,
    kicks: [Arc<OwnedFd>; 2],
    calls: [Arc<OwnedFd>; 2],
}

impl Link {
    /// Carries frames, and interrupts the guests that want that; returns how many it carried.
    fn carry_and_interrupt(&mut self) -> Result<u16, End> {
        let carried = self.wire.carry(BURST)?;
        if carried > 0 {
            for (call, wanted) in self.calls.iter().zip(self.wire.interrupts()) {
                if wanted {
                    rustix::io::write(call, &1u64.to_ne_bytes()).map_err(io::Error::from)?;
                }
            }
        }
        Ok(carried)
    }
}

/// Links between all rings that exist, in both directions.
fn between(a: &Guest, b: &Guest) -> Result<Vec<Link>, End> {
    let mut links = Vec::new();
    for (from, to) in [(a, b), (b, a)] {
        for pair in 0..from.rings.len() / 2 {
            let (sent, received) = (2 * pair + 1, 2 * pair);
            let (Some(tx), Some(rx)) = (from.ring(sent)?, to.ring(received)?) else { continue };
            let (tx_events, rx_events) = (from.rings[sent].events(), to.rings[received].events());
            let (Some(tx_events), Some(rx_events)) = (tx_events, rx_events) else { continue };
            links.push(Link {
                wire: Wire::new((tx.0, &tx.1), (rx.0, &rx.1))?,
                kicks: [tx_events.0, rx_events.0],
                calls: [tx_events.1, rx_events.1],
            });
        }
    }
    Ok(links)
}

/// One front-end, and what it has said.
struct Guest {
    connection: Connection,
    memory: Option<Arc<Memory>>,
    rings: Vec<Ring>,
}

/// The messages about one ring.
#[derive(Clone, Default)]
struct Ring {
    size: u16,
    start: u32,
    address: Option<RingAddress>,
    enabled: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
}

impl Ring {
    /// The descriptors for notifications and for interrupts.
    fn events(&self) -> Option<(Arc<OwnedFd>, Arc<OwnedFd>)> {
        self.kick.clone().zip(self.call.clone())
    }
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
        let Message { header, payload, mut fds } = message;
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
            Request::SetVringKick(ring, true) => {
                let kick = fds.pop().map(Arc::new);
                self.set(ring, |ring| ring.kick = kick)
            }
            Request::SetVringCall(ring, true) => {
                let call = fds.pop().map(Arc::new);
                self.set(ring, |ring| ring.call = call)
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
