//! The state of one connection: requests in, replies and changes of the queue pairs out.
//!
//! No socket and no thread: whoever has those reads a message and calls [`Session::answer`]. Pairs
//! are reached through a [`Dock`], the datapath or a test. A pair that has a ring is always docked,
//! except within a call.
//!
//! As to order, no more is asked of a front-end than sense demands. Stock front-ends enable rings
//! before they have negotiated features, repeat `SET_FEATURES` for every queue pair while others
//! already run, and describe rings in different orders; so a ring starts when all that it needs is
//! there, and only what would change under a running ring is refused.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use network::port::QueuePair;
use network::topology::QueueId;
use ring::region::{MapError, RegionSpec};
use ring::{Memory, PackedDevice, SplitDevice, Violation};
use thiserror::Error;

use crate::event::Event;
use crate::feature::{Features, bit, protocol};
use crate::message::{BadMessage, HasFd, Header, Region, Reply, Request, RingAddress};
use crate::queue::{Pair, Side, VirtioPair};
use crate::vring::Vring;

/// Most regions that the memory of one guest may have. Each keeps a descriptor open.
pub const MAX_REGIONS: usize = 32;

/// Smallest MTU of a link, as for IPv4 (RFC 791).
const MIN_MTU: u64 = 68;

/// Bit 0 of a ring's flags: the front-end wants a log of what is written.
const FLAG_LOG: u32 = 1;

/// Why a request cannot be met.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The message itself is wrong.
    #[error(transparent)]
    Message(#[from] BadMessage),
    /// Virtio features that were not offered.
    #[error("SET_FEATURES with {0:#x}, which is not offered")]
    Features(u64),
    /// Protocol features that were not offered.
    #[error("SET_PROTOCOL_FEATURES with {0:#x}, which is not offered")]
    ProtocolFeatures(u64),
    /// Other virtio features while rings run under the old ones.
    #[error("SET_FEATURES changes features while rings are started")]
    FeaturesWhileStarted,
    /// A ring beyond those that the port has.
    #[error("{name} for ring {ring}, the port has {rings}")]
    NoRing {
        /// The request.
        name: &'static str,
        /// Number of the ring.
        ring: u8,
        /// How many there are.
        rings: usize,
    },
    /// Size, place or position of a ring that is in use.
    #[error("{name} for ring {ring}, which is started")]
    Started {
        /// The request.
        name: &'static str,
        /// Number of the ring.
        ring: u8,
    },
    /// A ring part that is in no memory region.
    #[error("ring {ring}: its {part} at user address {addr:#x} is in no memory region")]
    Astray {
        /// Number of the ring.
        ring: usize,
        /// What of it.
        part: &'static str,
        /// Where it is said to be.
        addr: u64,
    },
    /// A ring that cannot be as described.
    #[error("ring {ring}: {violation}")]
    Ring {
        /// Number of the ring.
        ring: usize,
        /// What is wrong with it.
        violation: Violation,
    },
    /// A log of written pages was asked for.
    #[error("SET_VRING_ADDR for ring {0} asks for a log, which is not offered")]
    Log(u8),
    /// A kick, call or error descriptor that is no eventfd.
    #[error("{name} for ring {ring} brings a descriptor that is no eventfd")]
    NoEvent {
        /// The request.
        name: &'static str,
        /// Number of the ring.
        ring: u8,
    },
    /// Memory that cannot be mapped.
    #[error("memory table: {0}")]
    Memory(#[from] MapError),
    /// More regions than were promised.
    #[error("ADD_MEM_REG beyond {MAX_REGIONS} regions")]
    TooManyRegions,
    /// An MTU that does not fit the port's.
    #[error("MTU {asked}, the port is configured for at most {limit}")]
    Mtu {
        /// What the guest would be told.
        asked: u64,
        /// What the port carries.
        limit: u16,
    },
}

impl SessionError {
    /// Whether it can be declined by an acknowledgement, with the connection going on.
    fn is_declinable(&self) -> bool {
        match self {
            SessionError::Message(bad) => bad.is_declinable(),
            SessionError::Mtu { .. } => true,
            _ => false,
        }
    }
}

/// What comes of a message.
#[derive(Debug, Default)]
pub struct Answer {
    /// Bytes to send back.
    pub reply: Option<Vec<u8>>,
    /// Why the request was not met.
    pub error: Option<SessionError>,
    /// The connection cannot go on.
    pub closes: bool,
}

/// Where pairs are taken to work.
pub trait Dock {
    /// Hands a pair over; the name by which it comes back. `receives`: frames may be sent to it.
    fn attach(&self, index: u16, pair: Box<dyn QueuePair>, receives: bool) -> Option<QueueId>;

    /// Takes a pair back, when nothing of it is under way any more.
    fn detach(&self, queue: QueueId) -> Option<Box<dyn QueuePair>>;
}

/// What a session offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Queue pairs, at least one.
    pub queues: u16,
    /// The port's MTU in bytes, if it is limited.
    pub mtu: Option<u16>,
}

/// Rings that are started and enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Tx rings.
    pub tx: usize,
    /// Rx rings.
    pub rx: usize,
}

/// One front-end's connection.
pub struct Session<D: Dock> {
    dock: D,
    offer: Offer,
    features: Features,
    protocol: u64,
    regions: Vec<(Region, OwnedFd)>,
    memory: Option<Arc<Memory>>,
    vrings: Vec<Vring>,
    docked: Vec<Option<QueueId>>,
}

impl<D: Dock> Session<D> {
    /// A connection on which nothing was said yet.
    pub fn new(dock: D, offer: Offer) -> Self {
        let queues = usize::from(offer.queues.max(1));
        Session {
            dock,
            offer,
            features: Features::default(),
            protocol: 0,
            regions: Vec::new(),
            memory: None,
            vrings: (0..2 * queues).map(|_| Vring::default()).collect(),
            docked: vec![None; queues],
        }
    }

    /// The virtio features in use.
    pub fn features(&self) -> Features {
        self.features
    }

    /// How many rings pass data.
    pub fn running(&self) -> Running {
        let passes = |side| {
            let passing = |(i, ring): &(usize, &Vring)| {
                Side::of(*i) == side && ring.running && ring.is_enabled(self.features)
            };
            self.vrings.iter().enumerate().filter(passing).count()
        };
        Running { tx: passes(Side::Tx), rx: passes(Side::Rx) }
    }

    /// Does what a message asks for, and says what to reply. All of `fds` are used or closed.
    pub fn answer(&mut self, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> Answer {
        let result = Request::parse(header, payload, fds.len())
            .map_err(SessionError::from)
            .and_then(|request| {
                tracing::trace!(?request, "asked");
                self.handle(request, fds, header.name())
            });
        let acknowledges = header.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let acknowledge = |status| acknowledges.then(|| Reply::Number(status).encode(header.code));
        match result {
            Ok(Some(reply)) => {
                Answer { reply: Some(reply.encode(header.code)), ..Answer::default() }
            }
            Ok(None) => Answer { reply: acknowledge(0), ..Answer::default() },
            Err(error) => {
                let closes = !(acknowledges && error.is_declinable());
                Answer { reply: acknowledge(1), error: Some(error), closes }
            }
        }
    }

    /// Stops all rings and takes all pairs back. `errs`: the front-end is told through the rings'
    /// error descriptors.
    pub fn close(&mut self, errs: bool) {
        self.stop_all();
        if errs {
            for err in self.vrings.iter().filter_map(|ring| ring.err.as_ref()) {
                // The connection ends anyway.
                let _ = err.signal();
            }
        }
    }

    fn handle(
        &mut self,
        request: Request,
        mut fds: Vec<OwnedFd>,
        name: &'static str,
    ) -> Result<Option<Reply>, SessionError> {
        let number = |value| Ok(Some(Reply::Number(value)));
        match request {
            Request::GetFeatures => return number(Features::offered().0),
            Request::GetProtocolFeatures => return number(protocol::OFFERED),
            Request::GetQueueNum => return number(self.offer.queues.into()),
            Request::GetMaxMemSlots => return number(MAX_REGIONS as u64),
            Request::GetVringBase(ring) => {
                self.index(ring, name)?;
                return Ok(Some(Reply::State(ring, self.stop(ring.into()))));
            }
            Request::SetOwner => {}
            Request::SetFeatures(bits) => self.set_features(bits)?,
            Request::SetProtocolFeatures(bits) => self.set_protocol(bits)?,
            Request::ResetOwner | Request::ResetDevice => self.reset(),
            Request::SetMemTable(regions) => self.set_table(regions, fds)?,
            Request::AddMemReg(region) => self.add_region(region, fds.pop())?,
            Request::RemMemReg(region) => self.remove_region(region)?,
            Request::SetVringNum(ring, size) => self.set_size(ring, size, name)?,
            Request::SetVringBase(ring, base) => self.stopped(ring, name)?.base = Some(base),
            Request::SetVringAddr(ring, address) => self.set_address(ring, address, name)?,
            Request::SetVringKick(ring, has) => self.set_kick(ring, has, fds.pop(), name)?,
            Request::SetVringCall(ring, has) => self.set_call(ring, has, fds.pop(), name)?,
            Request::SetVringErr(ring, has) => {
                let err = event(ring, has, fds.pop(), name)?;
                let index = self.index(ring, name)?;
                self.vring(index).err = err;
            }
            Request::SetVringEnable(ring, enable) => self.set_enable(ring, enable, name)?,
            Request::NetSetMtu(mtu) => self.check_mtu(mtu)?,
        }
        Ok(None)
    }

    fn set_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let surplus = bits & !Features::offered().0;
        if surplus != 0 {
            return Err(SessionError::Features(surplus));
        }
        let features = Features(bits);
        if features != self.features && self.vrings.iter().any(|ring| ring.running) {
            return Err(SessionError::FeaturesWhileStarted);
        }
        self.features = features;
        Ok(())
    }

    fn set_protocol(&mut self, bits: u64) -> Result<(), SessionError> {
        match bits & !protocol::OFFERED {
            0 => {
                self.protocol = bits;
                Ok(())
            }
            surplus => Err(SessionError::ProtocolFeatures(surplus)),
        }
    }

    fn check_mtu(&self, asked: u64) -> Result<(), SessionError> {
        let limit = self.offer.mtu.unwrap_or(u16::MAX);
        match (MIN_MTU..=u64::from(limit)).contains(&asked) {
            true => Ok(()),
            false => Err(SessionError::Mtu { asked, limit }),
        }
    }

    /// Number of a ring that exists.
    fn index(&self, ring: u8, name: &'static str) -> Result<usize, SessionError> {
        let (index, rings) = (usize::from(ring), self.vrings.len());
        match index < rings {
            true => Ok(index),
            false => Err(SessionError::NoRing { name, ring, rings }),
        }
    }

    /// A ring that [`index`](Self::index) has let pass.
    fn vring(&mut self, index: usize) -> &mut Vring {
        &mut self.vrings[index]
    }

    /// A ring whose size, place and position may still change.
    fn stopped(&mut self, ring: u8, name: &'static str) -> Result<&mut Vring, SessionError> {
        let index = self.index(ring, name)?;
        let vring = self.vring(index);
        match vring.running {
            true => Err(SessionError::Started { name, ring }),
            false => Ok(vring),
        }
    }

    fn set_size(&mut self, ring: u8, size: u16, name: &'static str) -> Result<(), SessionError> {
        self.stopped(ring, name)?.size = Some(size);
        self.rewire(ring.into())
    }

    fn set_address(
        &mut self,
        ring: u8,
        address: RingAddress,
        name: &'static str,
    ) -> Result<(), SessionError> {
        if address.flags & FLAG_LOG != 0 {
            return Err(SessionError::Log(ring));
        }
        let index = self.index(ring, name)?;
        if self.vring(index).address == Some(address) {
            return Ok(());
        }
        self.stopped(ring, name)?.address = Some(address);
        self.rewire(index)
    }

    fn set_kick(
        &mut self,
        ring: u8,
        has: HasFd,
        fd: Option<OwnedFd>,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let index = self.index(ring, name)?;
        let vring = self.vring(index);
        vring.kick = event(ring, has, fd, name)?;
        vring.started = true;
        self.rewire(index)
    }

    fn set_call(
        &mut self,
        ring: u8,
        has: HasFd,
        fd: Option<OwnedFd>,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let index = self.index(ring, name)?;
        self.vring(index).call = event(ring, has, fd, name)?;
        self.rewire(index)?;
        self.vring(index)
            .interrupt()
            .map_err(|violation| SessionError::Ring { ring: index, violation })
    }

    fn set_enable(
        &mut self,
        ring: u8,
        enable: bool,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let index = self.index(ring, name)?;
        let was = self.vring(index).enable.replace(enable);
        match was == Some(enable) {
            true => Ok(()),
            false => self.rewire(index),
        }
    }

    /// Brings a ring up to date with what was said about it: starts it if it is ready, changes its
    /// wires if it runs.
    fn rewire(&mut self, index: usize) -> Result<(), SessionError> {
        if !self.vrings[index].running && !self.vrings[index].is_ready() {
            return Ok(());
        }
        let mut pair = self.take(index / 2);
        let result = match self.vrings[index].running {
            true => {
                pair.rewire(Side::of(index), self.vrings[index].wires(self.features));
                Ok(())
            }
            false => self.start(index, &mut *pair),
        };
        self.give(index / 2, pair);
        result
    }

    /// Starts a ring if it is ready and there is memory.
    fn start(&mut self, index: usize, pair: &mut dyn Pair) -> Result<(), SessionError> {
        let (vring, features) = (&mut self.vrings[index], self.features);
        let Some(memory) = self.memory.as_ref().filter(|_| vring.is_ready()) else {
            return Ok(());
        };
        let config = vring
            .config(memory, features)
            .map_err(|(part, addr)| SessionError::Astray { ring: index, part, addr })?;
        pair.start(Side::of(index), Arc::clone(memory), &config, vring.wires(features))
            .map_err(|violation| SessionError::Ring { ring: index, violation })?;
        vring.running = true;
        vring.interrupt().map_err(|violation| SessionError::Ring { ring: index, violation })
    }

    /// Stops a ring; where it stands.
    fn stop(&mut self, index: usize) -> u32 {
        if self.vrings[index].running {
            let mut pair = self.take(index / 2);
            self.halt(index, &mut *pair);
            self.give(index / 2, pair);
        }
        let vring = &mut self.vrings[index];
        vring.started = false;
        vring.kick = None;
        vring.base.unwrap_or(0)
    }

    /// Takes a ring out of its pair and remembers where it stood.
    fn halt(&mut self, index: usize, pair: &mut dyn Pair) {
        let vring = &mut self.vrings[index];
        vring.base = pair.stop(Side::of(index)).or(vring.base);
        vring.running = false;
    }

    fn stop_all(&mut self) {
        for index in 0..self.vrings.len() {
            self.stop(index);
        }
    }

    fn reset(&mut self) {
        self.stop_all();
        for vring in &mut self.vrings {
            *vring = Vring::default();
        }
    }

    fn set_table(&mut self, regions: Vec<Region>, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        self.regions = regions.into_iter().zip(fds).collect();
        self.remap()?;
        self.move_rings(true)
    }

    /// Adds a region. One that is there already is not another one: QEMU up to version 8 tells of
    /// every change of its memory once for each queue pair.
    fn add_region(&mut self, region: Region, fd: Option<OwnedFd>) -> Result<(), SessionError> {
        let Some(fd) = fd else { return Ok(()) };
        if self.regions.iter().any(|(known, file)| *known == region && is_same_file(file, &fd)) {
            return Ok(());
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(SessionError::TooManyRegions);
        }
        self.regions.push((region, fd));
        self.remap()?;
        self.move_rings(false)
    }

    /// Takes a region away; one that is gone already is no error, for the reason that
    /// [`add_region`](Self::add_region) has. A front-end that splits or moves a region removes
    /// it before it adds what takes its place; rings that lie in it rest meanwhile.
    fn remove_region(&mut self, region: Region) -> Result<(), SessionError> {
        let same = |(known, _): &(Region, OwnedFd)| {
            (known.guest_addr, known.user_addr, known.len)
                == (region.guest_addr, region.user_addr, region.len)
        };
        let Some(at) = self.regions.iter().position(same) else {
            return Ok(());
        };
        self.regions.remove(at);
        self.remap()?;
        self.move_rings(false)
    }

    /// Maps the regions as they are now. What was mapped before stays as long as frames in flight
    /// need it.
    fn remap(&mut self) -> Result<(), SessionError> {
        let spec = |(region, fd): &(Region, OwnedFd)| {
            Ok(RegionSpec {
                guest_addr: region.guest_addr,
                user_addr: region.user_addr,
                len: region.len,
                offset: region.offset,
                fd: fd.try_clone().map_err(MapError::Os)?,
            })
        };
        let specs = self.regions.iter().map(spec).collect::<Result<_, MapError>>()?;
        self.memory = Some(Arc::new(Memory::map(specs)?));
        Ok(())
    }

    /// Moves all rings to the new memory, and starts those that waited for it. No ring passes data
    /// meanwhile. A ring that is not in the new memory is an error if that is the `whole` of
    /// it, and rests otherwise: more may come.
    fn move_rings(&mut self, whole: bool) -> Result<(), SessionError> {
        let pairs: Vec<_> = (0..self.docked.len()).map(|index| self.take(index)).collect();
        let mut result = Ok(());
        for (number, mut pair) in pairs.into_iter().enumerate() {
            for index in [2 * number, 2 * number + 1] {
                let moved = self.move_ring(index, &mut *pair);
                result = result.and(if whole { moved } else { Ok(()) });
            }
            self.give(number, pair);
        }
        result
    }

    fn move_ring(&mut self, index: usize, pair: &mut dyn Pair) -> Result<(), SessionError> {
        let Some(memory) = self.memory.clone() else { return Ok(()) };
        if !self.vrings[index].running {
            return self.start(index, pair);
        }
        pair.set_memory(Side::of(index), memory).map_err(|violation| {
            self.halt(index, pair);
            SessionError::Ring { ring: index, violation }
        })
    }

    /// A pair out of the dock, or an empty one.
    fn take(&mut self, index: usize) -> Box<dyn Pair> {
        let docked = self.docked[index].take().and_then(|queue| self.dock.detach(queue));
        let back = docked.and_then(|pair| pair.into_any().downcast::<Box<dyn Pair>>().ok());
        match back {
            Some(pair) => *pair,
            None if self.features.has(bit::RING_PACKED) => {
                Box::new(VirtioPair::<PackedDevice>::new(self.features))
            }
            None => Box::new(VirtioPair::<SplitDevice>::new(self.features)),
        }
    }

    /// A pair into the dock, if it has a ring.
    fn give(&mut self, index: usize, pair: Box<dyn Pair>) {
        if pair.has(Side::Rx) || pair.has(Side::Tx) {
            let receives = pair.receives();
            self.docked[index] = self.dock.attach(index as u16, pair, receives);
        }
    }
}

impl<D: Dock> Drop for Session<D> {
    fn drop(&mut self) {
        self.stop_all();
    }
}

fn is_same_file(a: &OwnedFd, b: &OwnedFd) -> bool {
    let file = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    file(a).is_ok_and(|a| file(b).is_ok_and(|b| a == b))
}

/// The event descriptor beside a message, if it has one.
fn event(
    ring: u8,
    has: HasFd,
    fd: Option<OwnedFd>,
    name: &'static str,
) -> Result<Option<Arc<Event>>, SessionError> {
    match fd.filter(|_| has) {
        None => Ok(None),
        Some(fd) => {
            let event = Event::adopt(fd).ok_or(SessionError::NoEvent { name, ring })?;
            Ok(Some(Arc::new(event)))
        }
    }
}

#[cfg(test)]
mod tests;
