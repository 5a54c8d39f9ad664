//! Frames in the responses of an Rx ring: the assignment of bytes to pages, and the content of each
//! slot.

use frame::{Gso, GsoKind, Headers, L4, Offload};

use super::align::Shifts;
use super::sizes::Sizes;
use super::{GSO_TCPV4, GSO_TCPV6, RxSlot, extra, flag, rsp};

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
        match self.extra() {
            Some((at, extra)) if at == n => return (extra, None),
            _ => {}
        }
        let page = n.saturating_sub(self.gso.is_some().into());
        let (response, size) = self.page(page, request);
        (response, Some(size))
    }

    /// The response that holds page number `page` of the frame, and the page's number of bytes.
    #[inline]
    pub fn page(&self, page: u32, request: RxSlot) -> (RxSlot, u16) {
        let size = self.sizes.bytes.get(page as usize).copied().unwrap_or_default();
        let mut flags = if page + 1 < self.pages() { flag::RX_MORE_DATA } else { 0 };
        if page == 0 {
            flags |= self.flags | if self.gso.is_some() { flag::RX_EXTRA_INFO } else { 0 };
        }
        let offset = u32::from(self.shifts.page(page as usize));
        ([request[0] & 0xffff | offset << 16, u32::from(flags) | u32::from(size) << 16], size)
    }

    /// The number of the slot that holds page number `page`.
    #[inline]
    pub fn slot_of(&self, page: u32) -> u32 {
        if page == 0 { 0 } else { page + u32::from(self.gso.is_some()) }
    }

    /// The number of the slot with extra info, which is the one after the first page, and its
    /// content; `None`: there is no such slot.
    #[inline]
    pub fn extra(&self) -> Option<(u32, RxSlot)> {
        let (kind, size) = self.gso?;
        Some((1, [u32::from(extra::GSO) | u32::from(size) << 16, u32::from(kind)]))
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
