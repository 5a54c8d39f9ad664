//! The driver side of vhost-user: what QEMU and the guest in it do together.
//!
//! The load generator and the tests use it to be guests, from the oldest driver to the newest. The
//! messages are those of the independent crate `vhost`, so that a misreading of the protocol cannot
//! hide by being made on both sides; the few that it cannot say are written here byte by byte.
//!
//! The order of things: a connected socket becomes a [`FrontEnd`] by [`FrontEnd::negotiate`]; a
//! [`Guest`] is the memory; [`FrontEnd::share`] shows it to the back-end; [`FrontEnd::driver`]
//! makes and starts one queue pair. A hostile test reaches below all of it: [`Guest::memory`] is
//! all of the guest's memory, rings included, [`FrontEnd::stream`] the bare socket.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ring::driver::{DriverRing, Tables};
use ring::{MapError, Memory, RingConfig, Violation};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::feature::bit;

/// Where the back-end is told the front-end has the guest's memory. Deliberately not where it is,
/// nor the guest address: a back-end that mixes up its address spaces fails at once.
const USER_BASE: u64 = 0x5000_0000_0000;

/// How long a back-end may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

const PAGE: u64 = 4096;

/// Requests that crate `vhost` cannot say, or not fully.
const NET_SET_MTU: u32 = 20;
const SET_VRING_BASE: u32 = 10;

/// What went wrong between the front-end and the back-end.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A message failed; the back-end may have closed the socket, refused, or been mute for ten
    /// seconds.
    #[error("{request}: {error}")]
    Message {
        /// What was asked.
        request: &'static str,
        /// What became of it.
        error: vhost::Error,
    },
    /// The socket or an eventfd failed.
    #[error("{0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// The guest's memory could not be made.
    #[error("guest memory: {0}")]
    Memory(#[from] MapError),
    /// The guest's memory is too small for its rings and buffers.
    #[error("guest memory is full: {wanted} bytes wanted, {left} left")]
    Full {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes left.
        left: u64,
    },
    /// A ring that does not fit its layout.
    #[error("ring: {0}")]
    Ring(#[from] Violation),
    /// The back-end does not offer what the driver cannot do without.
    #[error("the back-end does not offer feature bits {0:#x}")]
    Missing(u64),
    /// More queue pairs than the back-end can serve.
    #[error("{wanted} queue pairs wanted, the back-end serves {served}")]
    Queues {
        /// Asked for.
        wanted: u16,
        /// What it said.
        served: u64,
    },
    /// The back-end answered a request with a failure.
    #[error("the back-end refused {0}")]
    Refused(&'static str),
}

fn say<T>(request: &'static str, result: vhost::Result<T>) -> Result<T, DriverError> {
    result.map_err(|error| DriverError::Message { request, error })
}

/// What a driver wants to be.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Feature bits it understands: those among them that the back-end offers are negotiated.
    pub features: u64,
    /// Feature bits among them that it cannot do without.
    pub required: u64,
    /// Queue pairs.
    pub queue_pairs: u16,
    /// MTU to tell the back-end, if it wants to hear (a protocol feature).
    pub mtu: Option<u16>,
    /// Protocol features it understands.
    pub protocol: VhostUserProtocolFeatures,
}

impl Wish {
    /// Protocol features of a front-end like QEMU, as far as a generator needs them.
    pub fn usual_protocol() -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::MTU
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }
}

/// The memory of a guest: one shared file, mapped here and shown to the back-end as one or more
/// regions.
pub struct Guest {
    memory: Arc<Memory>,
    file: OwnedFd,
    len: u64,
    regions: u64,
    next: u64,
}

impl Guest {
    /// A guest with `len` bytes of zeroed memory from guest address 0 on, shown as `regions`
    /// regions (1..=8, adjacent).
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(len: u64, regions: u64) -> Result<Self, DriverError> {
        let regions = regions.clamp(1, 8);
        let len = len.next_multiple_of(PAGE * regions);
        let (memory, file) = Memory::shared(len as usize)?;
        Ok(Self { memory: Arc::new(memory), file, len, regions, next: PAGE })
    }

    /// All of it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The file that holds it.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Sets `len` bytes aside; returns their guest address, a multiple of `align`, a power of two.
    /// They may straddle regions. Nothing is ever given back.
    ///
    /// # Errors
    /// When memory has run out.
    pub fn alloc(&mut self, len: u64, align: u64) -> Result<u64, DriverError> {
        let at = self.next.next_multiple_of(align);
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        self.next =
            end.ok_or(DriverError::Full { wanted: len, left: self.len.saturating_sub(at) })?;
        Ok(at)
    }

    /// As [`alloc`](Self::alloc), within one region: parts of a ring must not straddle.
    ///
    /// # Errors
    /// When memory has run out.
    pub fn alloc_whole(&mut self, len: u64, align: u64) -> Result<u64, DriverError> {
        let each = self.len / self.regions;
        let at = self.next.next_multiple_of(align);
        if at / each != (at + len.max(1) - 1) / each {
            self.next = (at / each + 1) * each;
        }
        self.alloc(len, align)
    }

    /// The regions as the back-end is told of them.
    pub fn table(&self) -> Vec<VhostUserMemoryRegionInfo> {
        let each = self.len / self.regions;
        let region = |i| VhostUserMemoryRegionInfo {
            guest_phys_addr: i * each,
            memory_size: each,
            userspace_addr: USER_BASE + i * each,
            mmap_offset: i * each,
            mmap_handle: self.file.as_raw_fd(),
        };
        (0..self.regions).map(region).collect()
    }
}

/// One ring of a guest: the driver's half, and the doorbells in both directions.
pub struct Vring<R> {
    /// The driver half.
    pub ring: R,
    index: u16,
    config: RingConfig,
    kick: EventFd,
    call: EventFd,
    kicks: u64,
}

impl<R: DriverRing> Vring<R> {
    /// Sets a ring aside in the guest's memory, with indirect tables of `entries` descriptors if
    /// that is not 0.
    ///
    /// # Errors
    /// When the guest's memory is full, the ring's size is not allowed, or there are no more file
    /// descriptors.
    pub fn new(
        guest: &mut Guest,
        index: u16,
        size: u16,
        features: u64,
        entries: u16,
    ) -> Result<Self, DriverError> {
        let bytes = R::footprint(size);
        let indirect = entries > 0 && features & bit::INDIRECT_DESC != 0;
        let config = RingConfig {
            size,
            desc: guest.alloc_whole(bytes.desc, PAGE)?,
            driver: guest.alloc_whole(bytes.driver, 64)?,
            device: guest.alloc_whole(bytes.device, 64)?,
            event_idx: features & bit::EVENT_IDX != 0,
            indirect,
            start: if features & bit::RING_PACKED != 0 { 0x8000_8000 } else { 0 },
        };
        let tables = match indirect {
            true => Some(Tables { addr: guest.alloc(Tables::bytes(size, entries), 64)?, entries }),
            false => None,
        };
        let eventfd =
            || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(|e| DriverError::Io("eventfd", e));
        let ring = R::new(guest.memory.clone(), &config, tables)?;
        Ok(Self { ring, index, config, kick: eventfd()?, call: eventfd()?, kicks: 0 })
    }

    /// Publishes what was added, and kicks if the device asked for it.
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.kick();
        }
    }

    /// Kicks, asked or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        // An eventfd whose counter is full has a wake-up pending anyway.
        let _ = self.kick.write(1);
    }

    /// Kicks so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// The interrupt: readable when the device raised it.
    pub fn call(&self) -> &EventFd {
        &self.call
    }

    /// Swallows a raised interrupt; true if there was one.
    pub fn acknowledge(&self) -> bool {
        self.call.read().is_ok()
    }

    /// Number of the ring: Rx rings are even, Tx rings odd.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Where it lies.
    pub fn config(&self) -> &RingConfig {
        &self.config
    }
}

/// The driver of one queue pair.
pub struct Driver<R> {
    /// What the guest transmits.
    pub tx: Vring<R>,
    /// What it receives.
    pub rx: Vring<R>,
}

/// The front-end of one connection.
pub struct FrontEnd {
    messages: Frontend,
    stream: UnixStream,
    features: u64,
    acknowledges: bool,
    protocol: VhostUserProtocolFeatures,
}

impl FrontEnd {
    /// Agrees with the back-end on features and queues, and becomes its owner.
    ///
    /// # Errors
    /// When it lacks what the driver requires, or does not keep to the protocol.
    pub fn negotiate(stream: UnixStream, wish: &Wish) -> Result<Self, DriverError> {
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| DriverError::Io("socket", e))?;
        let rings = 2 * u64::from(wish.queue_pairs);
        let clone = |s: &UnixStream| s.try_clone().map_err(|e| DriverError::Io("socket", e));
        let mut front = Self {
            messages: Frontend::from_stream(clone(&stream)?, rings),
            stream,
            features: 0,
            acknowledges: false,
            protocol: VhostUserProtocolFeatures::empty(),
        };
        let offered = say("GET_FEATURES", front.messages.get_features())?;
        let missing = wish.required & !offered;
        if missing != 0 {
            return Err(DriverError::Missing(missing));
        }
        front.features = offered & (wish.features | bit::PROTOCOL_FEATURES);
        if offered & bit::PROTOCOL_FEATURES != 0 {
            front.negotiate_protocol(wish)?;
        } else if wish.queue_pairs > 1 {
            return Err(DriverError::Queues { wanted: wish.queue_pairs, served: 1 });
        }
        say("SET_OWNER", front.messages.set_owner())?;
        say("SET_FEATURES", front.messages.set_features(front.features))?;
        if let Some(mtu) =
            wish.mtu.filter(|_| front.protocol.contains(VhostUserProtocolFeatures::MTU))
        {
            front.raw("NET_SET_MTU", NET_SET_MTU, &u64::from(mtu).to_le_bytes())?;
        }
        Ok(front)
    }

    fn negotiate_protocol(&mut self, wish: &Wish) -> Result<(), DriverError> {
        let offered = say("GET_PROTOCOL_FEATURES", self.messages.get_protocol_features())?;
        self.protocol = offered & wish.protocol;
        say("SET_PROTOCOL_FEATURES", self.messages.set_protocol_features(self.protocol))?;
        if self.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            self.acknowledges = true;
            self.messages.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let served = match self.protocol.contains(VhostUserProtocolFeatures::MQ) {
            true => self.queue_pairs_served()?,
            false => 1,
        };
        match u64::from(wish.queue_pairs) <= served {
            true => Ok(()),
            false => Err(DriverError::Queues { wanted: wish.queue_pairs, served }),
        }
    }

    /// Asks on the bare socket: crate `vhost` would take the answer, queue pairs, for a number of
    /// rings, and refuse half of them.
    fn queue_pairs_served(&mut self) -> Result<u64, DriverError> {
        const GET_QUEUE_NUM: u32 = 17;
        self.send_raw(GET_QUEUE_NUM, 1, &[], &[])?;
        self.receive_u64("GET_QUEUE_NUM")
    }

    /// The bare socket, for tests that send what no front-end sends.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Crate `vhost`'s front-end on the same socket.
    pub fn messages(&mut self) -> &mut Frontend {
        &mut self.messages
    }

    /// What was negotiated.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The protocol features that were negotiated.
    pub fn protocol(&self) -> VhostUserProtocolFeatures {
        self.protocol
    }

    /// Length of `virtio_net_hdr` before each frame (virtio 1.2, 5.1.6.1).
    pub fn header_len(&self) -> usize {
        match self.features & (bit::VERSION_1 | bit::MRG_RXBUF) {
            0 => 10,
            _ => 12,
        }
    }

    /// Shows the guest's memory to the back-end; again when it has changed.
    ///
    /// # Errors
    /// When the back-end refuses it.
    pub fn share(&mut self, guest: &Guest) -> Result<(), DriverError> {
        say("SET_MEM_TABLE", self.messages.set_mem_table(&guest.table())).map(drop)
    }

    /// Makes queue pair number `pair` with rings of `sizes` (Rx, Tx) and starts it.
    ///
    /// # Errors
    /// As [`Vring::new`] and [`start`](Self::start).
    pub fn driver<R: DriverRing>(
        &mut self,
        guest: &mut Guest,
        pair: u16,
        sizes: (u16, u16),
        entries: u16,
    ) -> Result<Driver<R>, DriverError> {
        let rx = Vring::new(guest, 2 * pair, sizes.0, self.features, entries)?;
        let tx = Vring::new(guest, 2 * pair + 1, sizes.1, self.features, entries)?;
        self.start(&rx, rx.config.start)?;
        self.start(&tx, tx.config.start)?;
        Ok(Driver { tx, rx })
    }

    /// Hands a ring to the back-end, which goes on from `base`, and enables it.
    ///
    /// # Errors
    /// When the back-end refuses it.
    pub fn start<R>(&mut self, vring: &Vring<R>, base: u32) -> Result<(), DriverError> {
        let (index, config) = (usize::from(vring.index), &vring.config);
        say("SET_VRING_NUM", self.messages.set_vring_num(index, config.size))?;
        let state: Vec<u8> = [u32::from(vring.index).to_le_bytes(), base.to_le_bytes()].concat();
        self.raw("SET_VRING_BASE", SET_VRING_BASE, &state)?;
        let place = VringConfigData {
            queue_max_size: config.size,
            queue_size: config.size,
            flags: 0,
            desc_table_addr: USER_BASE + config.desc,
            used_ring_addr: USER_BASE + config.device,
            avail_ring_addr: USER_BASE + config.driver,
            log_addr: None,
        };
        say("SET_VRING_ADDR", self.messages.set_vring_addr(index, &place))?;
        say("SET_VRING_CALL", self.messages.set_vring_call(index, &vring.call))?;
        say("SET_VRING_KICK", self.messages.set_vring_kick(index, &vring.kick))?;
        self.enable(vring.index, true)
    }

    /// Enables or disables a ring; without protocol features rings are enabled as they start.
    ///
    /// # Errors
    /// When the back-end refuses.
    pub fn enable(&mut self, index: u16, on: bool) -> Result<(), DriverError> {
        if self.features & bit::PROTOCOL_FEATURES == 0 {
            return Ok(());
        }
        say("SET_VRING_ENABLE", self.messages.set_vring_enable(usize::from(index), on))
    }

    /// Stops a ring; returns where the back-end got to.
    ///
    /// # Errors
    /// When the back-end does not answer.
    pub fn stop(&mut self, index: u16) -> Result<u32, DriverError> {
        say("GET_VRING_BASE", self.messages.get_vring_base(usize::from(index)))
    }

    /// A request that crate `vhost` does not know, with its acknowledgement if there is one.
    fn raw(&mut self, name: &'static str, request: u32, body: &[u8]) -> Result<(), DriverError> {
        let need_reply = if self.acknowledges { 8 } else { 0 };
        self.send_raw(request, 1 | need_reply, body, &[])?;
        match self.acknowledges && self.receive_u64(name)? != 0 {
            true => Err(DriverError::Refused(name)),
            false => Ok(()),
        }
    }

    /// Sends any message whatever: header fields, body and file descriptors are as given.
    ///
    /// # Errors
    /// When the socket is closed.
    pub fn send_raw(
        &self,
        request: u32,
        flags: u32,
        body: &[u8],
        files: &[&OwnedFd],
    ) -> Result<(), DriverError> {
        let mut bytes = Vec::with_capacity(12 + body.len());
        for word in [request, flags, body.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(body);
        let files: Vec<_> = files.iter().map(|f| f.as_fd()).collect();
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(files.len()))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        match sent {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(DriverError::Io("socket", io::ErrorKind::WriteZero.into())),
            Err(e) => Err(DriverError::Io("socket", e.into())),
        }
    }

    /// Receives a reply whose body is one 64-bit number.
    ///
    /// # Errors
    /// When the back-end closes the socket, is mute, or answers something else.
    pub fn receive_u64(&self, name: &'static str) -> Result<u64, DriverError> {
        let mut bytes = [0; 20];
        (&self.stream).read_exact(&mut bytes).map_err(|e| DriverError::Io(name, e))?;
        let (header, body) = bytes.split_at(12);
        if header[4] & 4 == 0 || header[8..] != [8, 0, 0, 0] {
            return Err(DriverError::Refused(name));
        }
        Ok(body.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_set_aside_once_and_within_regions_where_asked() {
        let mut guest = Guest::new(16 * PAGE, 4).unwrap();
        let region = |addr: u64| addr / (4 * PAGE);
        let first = guest.alloc(3 * PAGE - 100, 64).unwrap();
        assert!(first >= PAGE, "address 0 is never a buffer");
        let whole = guest.alloc_whole(2 * PAGE, 64).unwrap();
        assert_eq!(region(whole), region(whole + 2 * PAGE - 1));
        assert!(whole >= first + 3 * PAGE - 100);
        let across = guest.alloc(5 * PAGE, 64).unwrap();
        assert_ne!(region(across), region(across + 5 * PAGE - 1));
        assert!(matches!(guest.alloc(16 * PAGE, 1), Err(DriverError::Full { .. })));
        assert!(guest.alloc(1, 1).is_ok(), "a refusal takes nothing");
    }

    #[test]
    fn the_table_covers_memory_once_and_nowhere_at_its_own_address() {
        let guest = Guest::new(10 * PAGE, 3).unwrap();
        let table = guest.table();
        assert_eq!(table.len(), 3);
        let mut next = 0;
        for region in &table {
            assert_eq!((region.guest_phys_addr, region.mmap_offset), (next, next));
            assert_eq!(region.userspace_addr, USER_BASE + next);
            next += region.memory_size;
        }
        assert_eq!(next, guest.size());
    }
}
