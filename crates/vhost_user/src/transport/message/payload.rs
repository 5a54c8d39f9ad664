//! Payloads of requests: fields at fixed offsets, little endian.

use super::error::BadMessage;
use super::layout::{MAX_CONFIG, MAX_TABLE_REGIONS};

/// Bits 0 to 7 of the payload that accompanies an event descriptor: the number of the vring.
const RING_MASK: u64 = 0xff;
/// Bit 8 of it: no descriptor comes with the message.
const NO_FD: u64 = 1 << 8;

/// Bytes of `struct vhost_user_region`.
const REGION_LEN: usize = 32;

/// Bytes of `struct vhost_user_config` before the bytes of the configuration space.
const CONFIG_LEN: usize = 12;

/// Bytes of `struct VhostUserInflight`, without and with the padding at its end: front-ends send
/// either.
pub(super) const INFLIGHT_LEN: [usize; 2] = [20, 24];

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

/// The place of a ring, in the front-end's own (user) addresses.
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
    /// Guest address of the used ring (split) or the device event suppression structure (packed),
    /// for the log of written pages.
    pub log: u64,
}

impl RingAddress {
    /// Bit 0 of the flags (`VHOST_VRING_F_LOG`): what is written to the ring is to be logged.
    const LOG: u32 = 1;

    /// Where the used ring is logged, if it is to be logged.
    pub fn used_log(&self) -> Option<u64> {
        (self.flags & Self::LOG != 0).then_some(self.log)
    }

    /// Whether the ring lies at the same place as the `other` one, regardless of their logging.
    pub fn is_same_place(&self, other: &RingAddress) -> bool {
        *self == RingAddress { flags: self.flags, log: self.log, ..*other }
    }
}

/// Whether a ring's event descriptor comes beside the message, or there is none.
pub type HasFd = bool;

/// A range of the configuration space (`struct vhost_user_config`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRange {
    /// Offset of its first byte.
    pub offset: u32,
    /// Its length in bytes, at most [`MAX_CONFIG`].
    pub size: u32,
    /// Bit 0: the front-end writes on behalf of a live migration.
    pub flags: u32,
}

/// A bitmap of written pages (`struct VhostUserLog`). Its descriptor travels beside the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Bytes.
    pub len: u64,
    /// Where in the file it begins.
    pub offset: u64,
}

/// Memory for in-flight records (`struct VhostUserInflight`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflight {
    /// Bytes.
    pub len: u64,
    /// Where in the file the memory begins.
    pub offset: u64,
    /// Number of vrings.
    pub queues: u16,
    /// Entries of each vring.
    pub queue_size: u16,
}

/// The payload of a request, and the name of the request for errors.
pub(super) struct Payload<'a> {
    pub(super) name: &'static str,
    pub(super) bytes: &'a [u8],
}

impl Payload<'_> {
    /// The payload, if it has exactly the expected size.
    fn exactly<const N: usize>(&self) -> Result<[u8; N], BadMessage> {
        <[u8; N]>::try_from(self.bytes).map_err(|_| self.size(N))
    }

    fn size(&self, expected: usize) -> BadMessage {
        BadMessage::Size { name: self.name, size: self.bytes.len(), expected }
    }

    fn value(&self, value: u64) -> BadMessage {
        BadMessage::Value { name: self.name, value }
    }

    fn ring(&self, index: u64) -> Result<u8, BadMessage> {
        u8::try_from(index).map_err(|_| BadMessage::Ring { name: self.name, ring: index })
    }

    /// No payload at all.
    pub(super) fn empty(&self) -> Result<(), BadMessage> {
        self.exactly::<0>().map(drop)
    }

    /// One number of 64 bits.
    pub(super) fn number(&self) -> Result<u64, BadMessage> {
        self.exactly().map(u64::from_le_bytes)
    }

    /// `struct VhostUserLog`: the size and the offset of a log.
    pub(super) fn log_area(&self) -> Result<LogArea, BadMessage> {
        let bytes = self.exactly::<16>()?;
        Ok(LogArea { len: u64_at(&bytes, 0), offset: u64_at(&bytes, 8) })
    }

    /// An Ethernet address in the first six bytes of a number.
    pub(super) fn mac(&self) -> Result<[u8; 6], BadMessage> {
        let [a, b, c, d, e, f, _, _] = self.exactly::<8>()?;
        Ok([a, b, c, d, e, f])
    }

    /// `struct vhost_vring_state`: a vring and a number.
    pub(super) fn state(&self) -> Result<(u8, u32), BadMessage> {
        let bytes = self.exactly::<8>()?;
        Ok((self.ring(u32_at(&bytes, 0).into())?, u32_at(&bytes, 4)))
    }

    /// A vring and its size.
    pub(super) fn ring_size(&self) -> Result<(u8, u16), BadMessage> {
        let (ring, value) = self.state()?;
        Ok((ring, u16::try_from(value).map_err(|_| self.value(value.into()))?))
    }

    /// A vring, and whether it is enabled.
    pub(super) fn enable(&self) -> Result<(u8, bool), BadMessage> {
        match self.state()? {
            (ring, value @ (0 | 1)) => Ok((ring, value == 1)),
            (_, value) => Err(self.value(value.into())),
        }
    }

    /// `struct vhost_vring_addr`.
    pub(super) fn address(&self) -> Result<(u8, RingAddress), BadMessage> {
        let bytes = self.exactly::<40>()?;
        let address = RingAddress {
            flags: u32_at(&bytes, 4),
            desc: u64_at(&bytes, 8),
            used: u64_at(&bytes, 16),
            avail: u64_at(&bytes, 24),
            log: u64_at(&bytes, 32),
        };
        Ok((self.ring(u32_at(&bytes, 0).into())?, address))
    }

    /// A vring, and whether its event descriptor comes with the message.
    pub(super) fn event(&self) -> Result<(u8, HasFd), BadMessage> {
        let value = self.number()?;
        if value & !(RING_MASK | NO_FD) != 0 {
            return Err(BadMessage::Ring { name: self.name, ring: value });
        }
        Ok((self.ring(value & RING_MASK)?, value & NO_FD == 0))
    }

    /// A region behind eight bytes of padding.
    pub(super) fn region(&self) -> Result<Region, BadMessage> {
        let [_, _, _, _, _, _, _, _, region @ ..] = self.exactly::<{ 8 + REGION_LEN }>()?;
        Ok(region_from(&region))
    }

    /// A memory table: a count, padding, and as many regions.
    pub(super) fn table(&self) -> Result<Vec<Region>, BadMessage> {
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

    /// `struct VhostUserInflight`; the padding at its end, if it is sent, means nothing.
    pub(super) fn inflight(&self) -> Result<Inflight, BadMessage> {
        let bytes = match self.bytes.first_chunk::<{ INFLIGHT_LEN[0] }>() {
            Some(bytes) if INFLIGHT_LEN.contains(&self.bytes.len()) => bytes,
            _ => return Err(self.size(INFLIGHT_LEN[1])),
        };
        let counts = u32_at(bytes, 16);
        Ok(Inflight {
            len: u64_at(bytes, 0),
            offset: u64_at(bytes, 8),
            queues: counts as u16,
            queue_size: (counts >> 16) as u16,
        })
    }

    /// `struct vhost_user_config`, and the bytes of the range, which mean nothing in a request to
    /// read.
    pub(super) fn config(&self) -> Result<(ConfigRange, &[u8]), BadMessage> {
        let Some((head, bytes)) = self.bytes.split_first_chunk::<CONFIG_LEN>() else {
            return Err(self.size(CONFIG_LEN));
        };
        let range =
            ConfigRange { offset: u32_at(head, 0), size: u32_at(head, 4), flags: u32_at(head, 8) };
        match usize::try_from(range.size) {
            Ok(size) if size > MAX_CONFIG => Err(self.value(range.size.into())),
            Ok(size) if size == bytes.len() => Ok((range, bytes)),
            Ok(size) => Err(self.size(CONFIG_LEN + size)),
            Err(_) => Err(self.value(range.size.into())),
        }
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
