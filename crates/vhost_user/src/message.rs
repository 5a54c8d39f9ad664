//! vhost-user messages: bytes to meaning and back.
//!
//! Pure functions, no socket. A message is a 12-byte header (request, flags, payload size; all
//! fields of the protocol are little endian here, as both ends run on one host), a payload, and
//! file descriptors beside it. Everything comes from a front-end that may be hostile: a header is
//! checked before its payload is waited for, so that a size cannot make us allocate; payloads have
//! exactly the size that their request asks for; and the number of descriptors is held against what
//! the request says it brings. What cannot be meant is a [`BadMessage`] with a name.

use thiserror::Error;

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 12;

/// Most bytes of payload that are read: a page, far more than any request has.
pub const MAX_PAYLOAD: usize = 4096;

/// Most file descriptors beside one message: one for each region of a memory table.
pub const MAX_FDS: usize = 8;

/// Most regions of `SET_MEM_TABLE`.
pub const MAX_TABLE_REGIONS: usize = 8;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
const RING_MASK: u64 = 0xff;
const NO_FD: u64 = 1 << 8;
const REGION_LEN: usize = 32;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadMessage {
    /// Only version 1 of the protocol exists.
    #[error("protocol version {0} in a message header, 1 is expected")]
    Version(u32),
    /// The front-end sends requests, never replies, on this socket.
    #[error("a message that calls itself a reply")]
    IsReply,
    /// The announced payload is longer than any request's.
    #[error("{name} announces {size} bytes of payload, at most {MAX_PAYLOAD} are read")]
    Oversized {
        /// The request.
        name: &'static str,
        /// The size in its header.
        size: u32,
    },
    /// The payload is not as long as the request's is.
    #[error("{name} with a payload of {size} bytes, {expected} are expected")]
    Size {
        /// The request.
        name: &'static str,
        /// The size that came.
        size: usize,
        /// The size that the request has.
        expected: usize,
    },
    /// More or fewer file descriptors than the request brings.
    #[error("{name} with {fds} file descriptors, {expected} are expected")]
    Descriptors {
        /// The request.
        name: &'static str,
        /// How many came.
        fds: usize,
        /// How many should have.
        expected: usize,
    },
    /// More descriptors beside one message than any request brings.
    #[error("{name} with more than {MAX_FDS} file descriptors")]
    TooManyDescriptors {
        /// The request.
        name: &'static str,
    },
    /// A memory table without regions, or with more than the message may have.
    #[error("SET_MEM_TABLE with {0} regions, 1 to {MAX_TABLE_REGIONS} are allowed")]
    Regions(u32),
    /// A ring index that no ring of a vhost-user device can have.
    #[error("{name} for ring {ring}, which cannot exist")]
    Ring {
        /// The request.
        name: &'static str,
        /// The index.
        ring: u64,
    },
    /// A ring size or index beyond 16 bits.
    #[error("{name} of {value}, which cannot be")]
    Value {
        /// The request.
        name: &'static str,
        /// The number.
        value: u64,
    },
    /// A request that the protocol does not have.
    #[error("unknown request {0}")]
    Unknown(u32),
    /// A request of a protocol feature that is not offered.
    #[error("{0}, which is not offered")]
    NotOffered(&'static str),
}

impl BadMessage {
    /// Whether the message itself was sound, so that it can be declined and the next one read.
    pub fn is_declinable(self) -> bool {
        matches!(self, BadMessage::Unknown(_) | BadMessage::NotOffered(_))
    }
}

/// Names of all requests of the protocol, by number.
const NAMES: [&str; 45] = [
    "NONE",
    "GET_FEATURES",
    "SET_FEATURES",
    "SET_OWNER",
    "RESET_OWNER",
    "SET_MEM_TABLE",
    "SET_LOG_BASE",
    "SET_LOG_FD",
    "SET_VRING_NUM",
    "SET_VRING_ADDR",
    "SET_VRING_BASE",
    "GET_VRING_BASE",
    "SET_VRING_KICK",
    "SET_VRING_CALL",
    "SET_VRING_ERR",
    "GET_PROTOCOL_FEATURES",
    "SET_PROTOCOL_FEATURES",
    "GET_QUEUE_NUM",
    "SET_VRING_ENABLE",
    "SEND_RARP",
    "NET_SET_MTU",
    "SET_BACKEND_REQ_FD",
    "IOTLB_MSG",
    "SET_VRING_ENDIAN",
    "GET_CONFIG",
    "SET_CONFIG",
    "CREATE_CRYPTO_SESSION",
    "CLOSE_CRYPTO_SESSION",
    "POSTCOPY_ADVISE",
    "POSTCOPY_LISTEN",
    "POSTCOPY_END",
    "GET_INFLIGHT_FD",
    "SET_INFLIGHT_FD",
    "GPU_SET_SOCKET",
    "RESET_DEVICE",
    "VRING_KICK",
    "GET_MAX_MEM_SLOTS",
    "ADD_MEM_REG",
    "REM_MEM_REG",
    "SET_STATUS",
    "GET_STATUS",
    "GET_SHARED_OBJECT",
    "SET_DEVICE_STATE_FD",
    "CHECK_DEVICE_STATE",
    "GET_SHMEM_CONFIG",
];

/// The name of request number `code`.
pub fn name(code: u32) -> &'static str {
    usize::try_from(code)
        .ok()
        .and_then(|code| NAMES.get(code).copied())
        .unwrap_or("unknown request")
}

/// A checked message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub code: u32,
    /// The front-end wants to hear how it went (if `REPLY_ACK` was negotiated).
    pub need_reply: bool,
    /// Bytes of payload, at most [`MAX_PAYLOAD`].
    pub size: usize,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// Another version, a reply, or a size that no request has.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Header, BadMessage> {
        let [c0, c1, c2, c3, f0, f1, f2, f3, s0, s1, s2, s3] = *bytes;
        let code = u32::from_le_bytes([c0, c1, c2, c3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        let size = u32::from_le_bytes([s0, s1, s2, s3]);
        if flags & VERSION_MASK != VERSION {
            return Err(BadMessage::Version(flags & VERSION_MASK));
        }
        if flags & REPLY != 0 {
            return Err(BadMessage::IsReply);
        }
        match usize::try_from(size) {
            Ok(len) if len <= MAX_PAYLOAD => {
                Ok(Header { code, need_reply: flags & NEED_REPLY != 0, size: len })
            }
            _ => Err(BadMessage::Oversized { name: name(code), size }),
        }
    }

    /// The request's name.
    pub fn name(&self) -> &'static str {
        name(self.code)
    }
}

/// One region of the front-end's memory. Its descriptor travels beside the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Guest physical address.
    pub guest_addr: u64,
    /// Bytes.
    pub len: u64,
    /// Where the front-end itself has it mapped.
    pub user_addr: u64,
    /// Where in the file it begins.
    pub offset: u64,
}

/// Where a ring lies, in the front-end's own (user) addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddress {
    /// Bit 0: the used ring's pages are to be logged.
    pub flags: u32,
    /// Descriptor table (split) or descriptor ring (packed).
    pub desc: u64,
    /// Used ring (split) or device event suppression structure (packed).
    pub used: u64,
    /// Available ring (split) or driver event suppression structure (packed).
    pub avail: u64,
}

/// Whether a ring's event descriptor comes beside the message, or there is none.
pub type HasFd = bool;

/// What the front-end asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Which virtio features are offered?
    GetFeatures,
    /// These virtio features are used.
    SetFeatures(u64),
    /// A front-end took possession of the connection.
    SetOwner,
    /// Deprecated: all rings shall be disabled.
    ResetOwner,
    /// This is all of the memory; one descriptor for each region.
    SetMemTable(Vec<Region>),
    /// A ring has this many entries.
    SetVringNum(u8, u16),
    /// A ring lies here.
    SetVringAddr(u8, RingAddress),
    /// A ring goes on from this position.
    SetVringBase(u8, u32),
    /// Stop a ring: where is it?
    GetVringBase(u8),
    /// A ring's driver signals through this descriptor; without one the ring is to be polled.
    SetVringKick(u8, HasFd),
    /// A ring's driver is interrupted through this descriptor; without one it polls.
    SetVringCall(u8, HasFd),
    /// A ring's errors are told through this descriptor.
    SetVringErr(u8, HasFd),
    /// Which protocol features are offered?
    GetProtocolFeatures,
    /// These protocol features are used.
    SetProtocolFeatures(u64),
    /// How many queue pairs are there?
    GetQueueNum,
    /// A ring may pass data, or may not.
    SetVringEnable(u8, bool),
    /// The guest will be told this MTU.
    NetSetMtu(u64),
    /// The device starts afresh: all rings are stopped and disabled.
    ResetDevice,
    /// How many regions may the memory have?
    GetMaxMemSlots,
    /// One more region.
    AddMemReg(Region),
    /// One region fewer.
    RemMemReg(Region),
}

impl Request {
    /// What a message with this header and payload and `fds` descriptors means.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub fn parse(header: &Header, payload: &[u8], fds: usize) -> Result<Request, BadMessage> {
        let body = Body { name: header.name(), bytes: payload };
        let request = match header.code {
            1 => body.empty(Request::GetFeatures)?,
            2 => Request::SetFeatures(body.number()?),
            3 => body.empty(Request::SetOwner)?,
            4 => body.empty(Request::ResetOwner)?,
            5 => Request::SetMemTable(body.table()?),
            8 => body.ring_size()?,
            9 => body.address()?,
            10 => body.state(|ring, base| Ok(Request::SetVringBase(ring, base)))?,
            11 => body.state(|ring, _| Ok(Request::GetVringBase(ring)))?,
            12 => body.event(Request::SetVringKick)?,
            13 => body.event(Request::SetVringCall)?,
            14 => body.event(Request::SetVringErr)?,
            15 => body.empty(Request::GetProtocolFeatures)?,
            16 => Request::SetProtocolFeatures(body.number()?),
            17 => body.empty(Request::GetQueueNum)?,
            18 => body.enable()?,
            20 => Request::NetSetMtu(body.number()?),
            34 => body.empty(Request::ResetDevice)?,
            36 => body.empty(Request::GetMaxMemSlots)?,
            37 => Request::AddMemReg(body.region()?),
            38 => Request::RemMemReg(body.region()?),
            code if code != 0 && usize::try_from(code).is_ok_and(|code| code < NAMES.len()) => {
                return Err(BadMessage::NotOffered(name(code)));
            }
            code => return Err(BadMessage::Unknown(code)),
        };
        request.check_fds(header.name(), fds)?;
        Ok(request)
    }

    /// How many descriptors come beside the request.
    pub fn fds(&self) -> usize {
        match self {
            Request::SetMemTable(regions) => regions.len(),
            Request::AddMemReg(_) => 1,
            Request::SetVringKick(_, has)
            | Request::SetVringCall(_, has)
            | Request::SetVringErr(_, has) => usize::from(*has),
            _ => 0,
        }
    }

    fn check_fds(&self, name: &'static str, fds: usize) -> Result<(), BadMessage> {
        let expected = self.fds();
        // Front-ends used to send the descriptor of a region that goes; the specification says to
        // put up with it.
        let surplus = usize::from(matches!(self, Request::RemMemReg(_)));
        if fds < expected || fds > expected + surplus {
            return Err(BadMessage::Descriptors { name, fds, expected });
        }
        Ok(())
    }
}

/// A payload on its way to a meaning.
struct Body<'a> {
    name: &'static str,
    bytes: &'a [u8],
}

impl Body<'_> {
    /// The payload, if it has exactly the size that it should.
    fn exactly<const N: usize>(&self) -> Result<[u8; N], BadMessage> {
        <[u8; N]>::try_from(self.bytes).map_err(|_| self.size(N))
    }

    fn size(&self, expected: usize) -> BadMessage {
        BadMessage::Size { name: self.name, size: self.bytes.len(), expected }
    }

    fn empty(&self, request: Request) -> Result<Request, BadMessage> {
        self.exactly::<0>().map(|_| request)
    }

    fn number(&self) -> Result<u64, BadMessage> {
        self.exactly().map(u64::from_le_bytes)
    }

    fn ring(&self, index: u64) -> Result<u8, BadMessage> {
        u8::try_from(index).map_err(|_| BadMessage::Ring { name: self.name, ring: index })
    }

    /// `struct vhost_vring_state`: a ring's index and a number.
    fn state(
        &self,
        make: impl FnOnce(u8, u32) -> Result<Request, BadMessage>,
    ) -> Result<Request, BadMessage> {
        let bytes = self.exactly::<8>()?;
        make(self.ring(u32_at(&bytes, 0).into())?, u32_at(&bytes, 4))
    }

    fn ring_size(&self) -> Result<Request, BadMessage> {
        self.state(|ring, value| {
            let size = u16::try_from(value)
                .map_err(|_| BadMessage::Value { name: self.name, value: value.into() })?;
            Ok(Request::SetVringNum(ring, size))
        })
    }

    fn enable(&self) -> Result<Request, BadMessage> {
        self.state(|ring, value| match value {
            0 | 1 => Ok(Request::SetVringEnable(ring, value == 1)),
            _ => Err(BadMessage::Value { name: self.name, value: value.into() }),
        })
    }

    /// `struct vhost_vring_addr`; the log address at its end is not used.
    fn address(&self) -> Result<Request, BadMessage> {
        let bytes = self.exactly::<40>()?;
        let address = RingAddress {
            flags: u32_at(&bytes, 4),
            desc: u64_at(&bytes, 8),
            used: u64_at(&bytes, 16),
            avail: u64_at(&bytes, 24),
        };
        Ok(Request::SetVringAddr(self.ring(u32_at(&bytes, 0).into())?, address))
    }

    /// A ring's index in bits 0 to 7, and whether a descriptor is missing in bit 8.
    fn event(&self, make: fn(u8, HasFd) -> Request) -> Result<Request, BadMessage> {
        let value = self.number()?;
        if value & !(RING_MASK | NO_FD) != 0 {
            return Err(BadMessage::Ring { name: self.name, ring: value });
        }
        Ok(make(self.ring(value & RING_MASK)?, value & NO_FD == 0))
    }

    /// A region behind eight bytes of padding.
    fn region(&self) -> Result<Region, BadMessage> {
        let [_, _, _, _, _, _, _, _, region @ ..] = self.exactly::<{ 8 + REGION_LEN }>()?;
        Ok(region_from(&region))
    }

    fn table(&self) -> Result<Vec<Region>, BadMessage> {
        let Some((head, regions)) = self.bytes.split_first_chunk::<8>() else {
            return Err(self.size(8));
        };
        let count = u32_at(head, 0);
        let len = match usize::try_from(count) {
            Ok(len @ 1..=MAX_TABLE_REGIONS) => len,
            _ => return Err(BadMessage::Regions(count)),
        };
        if regions.len() != len * REGION_LEN {
            return Err(self.size(8 + len * REGION_LEN));
        }
        Ok(regions.as_chunks::<REGION_LEN>().0.iter().map(region_from).collect())
    }
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u32::from_le_bytes)
}

fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u64::from_le_bytes)
}

fn region_from(bytes: &[u8; REGION_LEN]) -> Region {
    Region {
        guest_addr: u64_at(bytes, 0),
        len: u64_at(bytes, 8),
        user_addr: u64_at(bytes, 16),
        offset: u64_at(bytes, 24),
    }
}

/// What is answered to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A number; as an acknowledgement, 0 for done and 1 for refused.
    Number(u64),
    /// A ring and where it stands.
    State(u8, u32),
}

impl Reply {
    /// The bytes of the reply to request number `code`.
    pub fn encode(self, code: u32) -> Vec<u8> {
        let payload = match self {
            Reply::Number(value) => value.to_le_bytes(),
            Reply::State(ring, value) => (u64::from(ring) | u64::from(value) << 32).to_le_bytes(),
        };
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        for field in [code, VERSION | REPLY, 8] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&payload);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(code: u32, flags: u32, size: u32) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&code.to_le_bytes());
        bytes[4..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..].copy_from_slice(&size.to_le_bytes());
        bytes
    }

    fn parse(code: u32, payload: &[u8], fds: usize) -> Result<Request, BadMessage> {
        let header = Header::parse(&header(code, 1, payload.len() as u32))?;
        Request::parse(&header, payload, fds)
    }

    fn state(ring: u32, value: u32) -> Vec<u8> {
        [ring.to_le_bytes(), value.to_le_bytes()].concat()
    }

    fn table(count: u32, present: u64) -> Vec<u8> {
        let mut bytes = state(count, 0);
        for field in 0..present * 4 {
            bytes.extend_from_slice(&(field + 1).to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_header_says_whether_a_reply_is_wanted() {
        let parsed = Header::parse(&header(3, 1 | NEED_REPLY, 0)).unwrap();
        assert_eq!(parsed, Header { code: 3, need_reply: true, size: 0 });
        assert_eq!(parsed.name(), "SET_OWNER");
    }

    #[test]
    fn a_header_is_refused_by_name() {
        assert_eq!(Header::parse(&header(1, 2, 0)), Err(BadMessage::Version(2)));
        assert_eq!(Header::parse(&header(1, 1 | REPLY, 0)), Err(BadMessage::IsReply));
        let oversized = Header::parse(&header(5, 1, MAX_PAYLOAD as u32 + 1));
        assert_eq!(oversized, Err(BadMessage::Oversized { name: "SET_MEM_TABLE", size: 4097 }));
        assert!(Header::parse(&header(5, 1, u32::MAX)).is_err());
    }

    #[test]
    fn numbers_and_rings_are_read() {
        let feature = 1u64 << 32 | 5;
        assert_eq!(parse(2, &feature.to_le_bytes(), 0), Ok(Request::SetFeatures(feature)));
        assert_eq!(parse(8, &state(3, 256), 0), Ok(Request::SetVringNum(3, 256)));
        assert_eq!(parse(10, &state(3, 0x8001_8001), 0), Ok(Request::SetVringBase(3, 0x8001_8001)));
        assert_eq!(parse(11, &state(7, 9), 0), Ok(Request::GetVringBase(7)));
        assert_eq!(parse(18, &state(7, 1), 0), Ok(Request::SetVringEnable(7, true)));
        assert_eq!(parse(12, &5u64.to_le_bytes(), 1), Ok(Request::SetVringKick(5, true)));
        assert_eq!(parse(13, &0x105u64.to_le_bytes(), 0), Ok(Request::SetVringCall(5, false)));
    }

    #[test]
    fn ring_addresses_are_read_in_the_order_of_the_structure() {
        let mut bytes = state(2, 0);
        for field in [0x1000u64, 0x2000, 0x3000, 0x4000] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        let address = RingAddress { flags: 0, desc: 0x1000, used: 0x2000, avail: 0x3000 };
        assert_eq!(parse(9, &bytes, 0), Ok(Request::SetVringAddr(2, address)));
    }

    #[test]
    fn memory_regions_are_read() {
        let first = Region { guest_addr: 1, len: 2, user_addr: 3, offset: 4 };
        let second = Region { guest_addr: 5, len: 6, user_addr: 7, offset: 8 };
        assert_eq!(parse(5, &table(2, 2), 2), Ok(Request::SetMemTable(vec![first, second])));
        assert_eq!(parse(37, &table(0, 1), 1), Ok(Request::AddMemReg(first)));
        assert_eq!(parse(38, &table(0, 1), 0), Ok(Request::RemMemReg(first)));
        assert_eq!(parse(38, &table(0, 1), 1), Ok(Request::RemMemReg(first)));
    }

    #[test]
    fn sizes_are_exact() {
        for (code, expected) in
            [(1, 0usize), (2, 8), (8, 8), (9, 40), (12, 8), (20, 8), (37, 40), (38, 40)]
        {
            for size in [expected + 1, expected + 8, expected.wrapping_sub(1)] {
                if size <= MAX_PAYLOAD {
                    let bad = BadMessage::Size { name: name(code), size, expected };
                    assert_eq!(parse(code, &vec![0; size], 0), Err(bad));
                }
            }
        }
    }

    #[test]
    fn a_memory_table_is_as_long_as_it_says() {
        assert_eq!(parse(5, &table(0, 0), 0), Err(BadMessage::Regions(0)));
        assert_eq!(parse(5, &table(9, 9), 9), Err(BadMessage::Regions(9)));
        assert_eq!(parse(5, &table(u32::MAX, 1), 1), Err(BadMessage::Regions(u32::MAX)));
        let short = BadMessage::Size { name: "SET_MEM_TABLE", size: 40, expected: 72 };
        assert_eq!(parse(5, &table(2, 1), 2), Err(short));
        assert_eq!(
            parse(5, &[0; 7], 0),
            Err(BadMessage::Size { name: "SET_MEM_TABLE", size: 7, expected: 8 })
        );
    }

    #[test]
    fn descriptors_are_counted() {
        let wrong = |name, fds, expected| Err(BadMessage::Descriptors { name, fds, expected });
        assert_eq!(parse(5, &table(2, 2), 1), wrong("SET_MEM_TABLE", 1, 2));
        assert_eq!(parse(5, &table(2, 2), 3), wrong("SET_MEM_TABLE", 3, 2));
        assert_eq!(parse(12, &5u64.to_le_bytes(), 0), wrong("SET_VRING_KICK", 0, 1));
        assert_eq!(parse(13, &0x105u64.to_le_bytes(), 1), wrong("SET_VRING_CALL", 1, 0));
        assert_eq!(parse(3, &[], 1), wrong("SET_OWNER", 1, 0));
        assert_eq!(parse(38, &table(0, 1), 2), wrong("REM_MEM_REG", 2, 0));
    }

    #[test]
    fn impossible_values_are_refused() {
        assert_eq!(
            parse(11, &state(256, 0), 0),
            Err(BadMessage::Ring { name: "GET_VRING_BASE", ring: 256 })
        );
        assert_eq!(
            parse(12, &0x200u64.to_le_bytes(), 1),
            Err(BadMessage::Ring { name: "SET_VRING_KICK", ring: 512 })
        );
        assert_eq!(
            parse(8, &state(0, 65536), 0),
            Err(BadMessage::Value { name: "SET_VRING_NUM", value: 65536 })
        );
        assert_eq!(
            parse(18, &state(0, 2), 0),
            Err(BadMessage::Value { name: "SET_VRING_ENABLE", value: 2 })
        );
    }

    #[test]
    fn what_is_not_offered_can_be_declined() {
        for (code, refusal) in [
            (6, BadMessage::NotOffered("SET_LOG_BASE")),
            (31, BadMessage::NotOffered("GET_INFLIGHT_FD")),
            (0, BadMessage::Unknown(0)),
            (45, BadMessage::Unknown(45)),
            (u32::MAX, BadMessage::Unknown(u32::MAX)),
        ] {
            assert_eq!(parse(code, &[1, 2, 3], 2), Err(refusal));
            assert!(refusal.is_declinable());
        }
    }

    #[test]
    fn replies_name_their_request() {
        let bytes = Reply::State(3, 77).encode(11);
        assert_eq!(bytes[..12], header(11, 1 | REPLY, 8));
        assert_eq!(bytes[12..], state(3, 77));
        assert_eq!(Reply::Number(1).encode(2)[12..], 1u64.to_le_bytes());
    }

    proptest! {
        #[test]
        fn no_bytes_whatever_panic(code in 0u32..50, payload in proptest::collection::vec(any::<u8>(), 0..400), fds in 0usize..10) {
            let _ = parse(code, &payload, fds);
        }

        #[test]
        fn no_header_whatever_panics_or_passes_the_limit(bytes in any::<[u8; HEADER_LEN]>()) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert!(header.size <= MAX_PAYLOAD);
            }
        }

        #[test]
        fn what_parses_has_the_descriptors_that_it_needs(code in 0u32..50, payload in proptest::collection::vec(any::<u8>(), 0..50), fds in 0usize..10) {
            if let Ok(request) = parse(code, &payload, fds) {
                prop_assert!(request.fds() <= fds);
            }
        }
    }
}
