//! The Internet checksum (RFC 1071), taken piece by piece.

use crate::bytes::{get_u16, put};
use crate::offload::{BadOffload, PartialCsum};
use crate::view::{Headers, proto};

/// Where the checksum lies in a TCP header (RFC 9293, 3.1).
pub(crate) const TCP_CSUM_OFFSET: u16 = 16;
/// Where the checksum lies in a UDP header (RFC 768).
pub(crate) const UDP_CSUM_OFFSET: u16 = 6;

/// A running one's-complement sum over pieces of any length, odd ones included.
///
/// The sum is kept in the machine's own byte order: RFC 1071 shows that only the result has to be
/// swapped.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum {
    /// Sum of 16-bit words, partly folded: below 2^37 for one piece, and less than 2^17 more per
    /// further step, so it cannot overflow.
    words: u64,
    /// An odd number of bytes so far: the next byte is the second one of a word.
    odd: bool,
}

impl Sum {
    /// Nothing summed yet.
    #[inline]
    pub const fn new() -> Sum {
        Sum { words: 0, odd: false }
    }

    /// The sum over `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        Sum { words: sum_words(bytes), odd: bytes.len() % 2 == 1 }
    }

    /// Adds `bytes`, which follow the bytes summed so far.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        self.append(Sum::of(bytes));
    }

    /// Adds bytes that were summed elsewhere, and that follow the bytes summed so far.
    #[inline]
    pub fn append(&mut self, next: Sum) {
        let folded = fold(next.words);
        self.words += u64::from(if self.odd { folded.swap_bytes() } else { folded });
        self.odd ^= next.odd;
    }

    /// Adds a 16-bit field, which must be at an even offset.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.words += u64::from(value.to_be());
    }

    /// Adds an IPv4 pseudo header (RFC 9293, 3.1): addresses in wire order, `len` bytes of
    /// transport header and payload.
    #[inline]
    pub fn add_pseudo_v4(&mut self, src: [u8; 4], dst: [u8; 4], proto: u8, len: u32) {
        self.words += u64::from(fold(sum_words(&src) + sum_words(&dst)));
        self.add_pseudo_tail(proto, len);
    }

    /// Adds an IPv6 pseudo header (RFC 8200, 8.1): addresses in wire order, `len` bytes of
    /// transport header and payload.
    #[inline]
    pub fn add_pseudo_v6(&mut self, src: [u8; 16], dst: [u8; 16], proto: u8, len: u32) {
        self.words += u64::from(fold(sum_words(&src) + sum_words(&dst)));
        self.add_pseudo_tail(proto, len);
    }

    #[inline]
    fn add_pseudo_tail(&mut self, proto: u8, len: u32) {
        self.add_u16(u16::from(proto));
        self.add_u16((len >> 16) as u16);
        self.add_u16(len as u16);
    }

    /// The sum folded to 16 bits, not inverted: the value of a partial checksum's field, and 0xffff
    /// over data whose checksum is right.
    #[inline]
    pub fn fold(self) -> u16 {
        u16::from_be(fold(self.words))
    }

    /// The checksum: the folded sum, inverted.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum as UDP writes it: zero would mean "none", so it becomes 0xffff, which verifies
    /// alike (RFC 768).
    #[inline]
    pub fn checksum_nonzero(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            sum => sum,
        }
    }
}

/// Folds to 16 bits with end-around carry.
#[inline(always)]
fn fold(words: u64) -> u16 {
    let words = (words & 0xffff_ffff) + (words >> 32);
    let words = (words & 0xffff) + ((words >> 16) & 0xffff) + (words >> 32);
    let words = (words & 0xffff) + (words >> 16);
    ((words & 0xffff) + (words >> 16)) as u16
}

/// Sum of the native-endian 16-bit words, the last one padded with a zero byte.
///
/// Works on 32-bit words in lanes of 64 bits, which compilers turn into vector code: a lane has
/// room for 2^32 of them.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0u64; 8];
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut total = 0;
    for lane in lanes {
        total += (lane & 0xffff_ffff) + (lane >> 32);
    }
    let (pairs, last) = rest.as_chunks::<2>();
    for pair in pairs {
        total += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [byte] = *last {
        total += u64::from(u16::from_ne_bytes([byte, 0]));
    }
    total
}

/// Finishes a partial checksum in software: sums from `csum.start` to the frame's end and writes
/// the result.
///
/// `head` holds the frame's first bytes, `body` the sum over all bytes that follow them. A result
/// of zero is written as 0xffff for UDP only, which needs it (RFC 768). Receivers accept both
/// forms, but the form 0xffff is wrong for TCP and ICMP (RFC 1624, 3), and analysers report it. The
/// place of the field tells the protocols apart, also within a tunnel of the guest's own.
///
/// Errors: [`BadOffload::CsumKind`] for SCTP, whose checksum is a CRC; [`BadOffload::CsumRange`]
/// when the field lies outside of `head`. The head is unchanged then.
pub fn complete_csum(
    head: &mut [u8],
    headers: &Headers,
    csum: PartialCsum,
    body: Sum,
) -> Result<(), BadOffload> {
    if headers.proto == proto::SCTP {
        return Err(BadOffload::CsumKind);
    }
    let start = usize::from(csum.start);
    let field = start + usize::from(csum.offset);
    if get_u16(head, field).is_none() {
        return Err(BadOffload::CsumRange);
    }
    let mut sum = Sum::of(head.get(start..).ok_or(BadOffload::CsumRange)?);
    sum.append(body);
    let udp = csum.offset == UDP_CSUM_OFFSET;
    let value = if udp { sum.checksum_nonzero() } else { sum.checksum() };
    put(head, field, value.to_be_bytes()).ok_or(BadOffload::CsumRange)
}

#[cfg(test)]
mod tests;
