//! Frames in the responses of an Rx ring: the assignment of bytes to pages, and the content of each
//! slot.

use frame::{Gso, GsoKind, Headers, L4, Offload};
use ring::grant::PAGE;

use super::{GSO_TCPV4, GSO_TCPV6, PAGES, RxSlot, extra, flag, rsp};
use crate::netif::align::Shifts;

/// Bytes that a receiver pulls out of a frame's first slot. Linux' frontend does not count a first
/// slot with no more than that against the slots that it can hold.
pub(super) const PULLED: u16 = 256;

/// The number of a frame's bytes in each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub(super) bytes: [u16; PAGES],
    pub(super) count: u8,
}

impl Sizes {
    /// The sizes of a frame of `len` bytes, of which `head` are private. The others lie in
    /// `pieces`, if they are granted.
    ///
    /// Each copy costs the hypervisor about as much as copying half a page, and a piece that is
    /// split over two pages takes two copies. So pieces are kept whole as far as the receiver has
    /// slots; otherwise pages are filled.
    pub fn of<I: Iterator<Item = u32>>(
        head: u32,
        len: u32,
        pieces: impl FnOnce() -> I,
    ) -> Option<Self> {
        if len <= PAGE as u32 {
            return Some(Sizes { bytes: one(len as u16), count: 1 });
        }
        Self::whole(head, len, pieces()).or_else(|| Self::full(len))
    }

    /// The number of bytes in page number `page`, if it has any.
    #[inline]
    pub fn page(&self, page: usize) -> Option<u32> {
        self.bytes[..usize::from(self.count)].get(page).map(|bytes| u32::from(*bytes))
    }

    /// These sizes, if a frame may have so many pages.
    pub(crate) fn given(all: impl Iterator<Item = u16>) -> Option<Self> {
        let (mut bytes, mut count) = (one(0), 0);
        for size in all {
            *bytes.get_mut(count)? = size;
            count += 1;
        }
        Some(Sizes { bytes, count: count as u8 })
    }

    /// Each piece in one page.
    fn whole(head: u32, len: u32, pieces: impl Iterator<Item = u32>) -> Option<Self> {
        let (mut bytes, mut at, mut total) = (one(0), 0, head);
        let mut size = head;
        for piece in pieces {
            total += piece;
            if size + piece > PAGE as u32 {
                *bytes.get_mut(at)? = size as u16;
                (at, size) = (at + 1, 0);
            }
            size += piece;
            if size > PAGE as u32 {
                return None;
            }
        }
        *bytes.get_mut(at)? = size as u16;
        let most = if bytes[0] > PULLED { PAGES - 1 } else { PAGES };
        (total == len && at < most).then_some(Sizes { bytes, count: at as u8 + 1 })
    }

    /// All pages full but the last.
    fn full(len: u32) -> Option<Self> {
        let mut bytes = one(0);
        let mut left = len;
        for (count, size) in (1..).zip(&mut bytes) {
            *size = left.min(PAGE as u32) as u16;
            left -= u32::from(*size);
            if left == 0 {
                return Some(Sizes { bytes, count });
            }
        }
        None
    }
}

fn one(len: u16) -> [u16; PAGES] {
    let mut bytes = [0; PAGES];
    bytes[0] = len;
    bytes
}

/// The layout of a frame in the slots of an Rx ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    sizes: Sizes,
    shifts: Shifts,
    flags: u16,
    gso: Option<(u8, u16)>,
}

impl Layout {
    /// The layout of a frame with these sizes and this offload. `headers` are those that its
    /// receiver will find. `None` when slots cannot express the offload, or there are no sizes.
    pub fn of(
        sizes: Option<Sizes>,
        offload: &Offload,
        headers: impl FnOnce() -> Option<Headers>,
    ) -> Option<Self> {
        let sizes = sizes?;
        let mut flags = if offload.valid { flag::RX_DATA_VALIDATED } else { 0 };
        if let Some(csum) = offload.csum {
            // The receiver finds the place of the checksum itself.
            let headers = headers()?;
            let offset = match headers.l4 {
                L4::Tcp => 16,
                L4::Udp => 6,
                L4::None | L4::Other => return None,
            };
            if csum.start != u16::from(headers.l4_at) || csum.offset != offset {
                return None;
            }
            flags = flag::RX_CSUM_BLANK | flag::RX_DATA_VALIDATED;
        }
        let gso = match offload.gso {
            None => None,
            Some(Gso { kind: GsoKind::TcpV4, size, .. }) => Some((GSO_TCPV4, size)),
            Some(Gso { kind: GsoKind::TcpV6, size, .. }) => Some((GSO_TCPV6, size)),
            Some(_) => return None,
        };
        Some(Layout { sizes, shifts: Shifts::default(), flags, gso })
    }

    /// The same layout, but with bytes beginning where copies of them are aligned: `head` bytes are
    /// private, the others lie in `pieces` (see [`Shifts::of`]).
    #[must_use]
    pub fn aligned(self, head: u32, pieces: impl IntoIterator<Item = (u32, u32)>) -> Self {
        Layout { shifts: Shifts::of(&self.sizes, head, pieces), ..self }
    }

    /// Pages that the frame's bytes take.
    pub fn pages(&self) -> u32 {
        self.sizes.count.into()
    }

    /// Slots that the frame takes.
    pub fn slots(&self) -> u32 {
        self.pages() + u32::from(self.gso.is_some())
    }

    /// The number of bytes in slot number `n`; `None`: extra info.
    pub fn size(&self, n: u32) -> Option<u16> {
        self.answer(n, [0; 2]).1
    }

    /// The response in slot number `n`, whose request was `request`.
    pub fn response(&self, n: u32, request: RxSlot) -> RxSlot {
        self.answer(n, request).0
    }

    /// The response in slot number `n`, whose request was `request`, and its number of bytes;
    /// `None`: extra info.
    #[inline]
    pub fn answer(&self, n: u32, request: RxSlot) -> (RxSlot, Option<u16>) {
        let gso = u32::from(self.gso.is_some());
        if n == 1 && gso == 1 {
            return (self.extra(), None);
        }
        let page = n.saturating_sub(gso);
        let size = self.sizes.bytes.get(page as usize).copied().unwrap_or_default();
        let mut flags = if page + 1 < self.pages() { flag::RX_MORE_DATA } else { 0 };
        if n == 0 {
            flags |= self.flags | if gso == 1 { flag::RX_EXTRA_INFO } else { 0 };
        }
        let offset = u32::from(self.shifts.page(page as usize));
        ([request[0] & 0xffff | offset << 16, u32::from(flags) | u32::from(size) << 16], Some(size))
    }

    fn extra(&self) -> RxSlot {
        let (kind, size) = self.gso.unwrap_or_default();
        [u32::from(extra::GSO) | u32::from(size) << 16, u32::from(kind)]
    }
}

/// Turns the first response of a frame into one without a frame.
pub fn spoil(response: &mut RxSlot) {
    response[1] = response[1] & 0xffff | u32::from(rsp::ERROR as u16) << 16;
}

/// The offset in its page at which the bytes of an Rx response begin.
pub fn rx_offset(response: RxSlot) -> u16 {
    (response[0] >> 16) as u16
}

/// The response for a whole frame of `len` bytes that begins at `offset` of page `id`, without
/// flags.
pub fn rx_response(id: u16, offset: u16, len: u16) -> RxSlot {
    [u32::from(id) | u32::from(offset) << 16, u32::from(len) << 16]
}

/// The grant that a request of an Rx ring names.
pub fn rx_reference(request: RxSlot) -> u32 {
    request[1]
}
