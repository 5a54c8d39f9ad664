//! A front-end of a bare back-end, and what it has said.
//!
//! The front-ends are the generators' and are trusted: anything unexpected ends the connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring::region::RegionSpec;
use ring::{Memory, RingConfig, Violation};
use vhost_user::transport::connection::{Connection, ConnectionError, Incoming, Message};
use vhost_user::transport::feature::protocol;
use vhost_user::transport::message::{BadMessage, Region, Reply, Request, RingAddress};

/// Queues, or pairs of them, that are offered.
const QUEUES: u64 = 16;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(in crate::bench) enum End {
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

/// One front-end, and what it has said.
pub(in crate::bench) struct Guest {
    connection: Connection,
    /// The features that are offered to it.
    features: u64,
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

impl Guest {
    pub(in crate::bench) fn new(socket: OwnedFd, features: u64) -> Self {
        Self { connection: Connection::new(socket), features, memory: None, rings: Vec::new() }
    }

    /// The number of rings that it has named.
    pub(in crate::bench) fn rings(&self) -> usize {
        self.rings.len()
    }

    /// The descriptors for notifications and for interrupts of a ring.
    pub(in crate::bench) fn events(&self, index: usize) -> Option<(Arc<OwnedFd>, Arc<OwnedFd>)> {
        let ring = self.rings.get(index)?;
        ring.kick.clone().zip(ring.call.clone())
    }

    /// Answers the messages since the last call; true if a ring has become ready.
    pub(in crate::bench) fn listen(&mut self) -> Result<bool, End> {
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
            Request::GetFeatures => Some(self.features),
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
    pub(in crate::bench) fn ring(
        &self,
        index: usize,
    ) -> Result<Option<(Arc<Memory>, RingConfig)>, End> {
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

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
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
