//! Packets in slots: from the requests of a Tx ring to packets, and from frames to the responses of
//! an Rx ring (xen/include/public/io/netif.h).
//!
//! Pure functions over copies of the slots, which came out of the ring once. A slot is an array of
//! words of four bytes, little endian; offsets in the comments are those of netif.h.

use frame::{BadOffload, Gso, GsoKind, Head, Headers, L3, L4, Mac, Offload, PartialCsum, Sum};
use ring::grant::PAGE;

use crate::netif::align::Shifts;
use crate::netif::fault::Fault;

/// One slot of a Tx ring.
pub type TxSlot = [u32; 3];
/// One slot of an Rx ring.
pub type RxSlot = [u32; 2];

/// Data slots that a packet may have: the first, and 18 more (netif.h asks for 18 in all; Linux'
/// backend counts like this).
pub const SLOTS: u32 = 1 + 18;
/// Data slots beyond which a frontend is taken for hostile, as Linux' backend does. What lies
/// between is dropped.
pub const FATAL_SLOTS: u32 = 1 + 20;
/// Pages that a frame is spread over at most: netif.h promises that a receiver takes so many.
pub const PAGES: usize = 18;
/// Extra info slots of a packet: one of each type.
const EXTRAS: u32 = 4;

/// Flags of a request or a response: `NETTXF_`, `NETRXF_`, which are the same bits but in another
/// order.
pub(crate) mod flag {
    pub const TX_CSUM_BLANK: u16 = 1;
    pub const TX_DATA_VALIDATED: u16 = 2;
    pub const TX_MORE_DATA: u16 = 4;
    pub const TX_EXTRA_INFO: u16 = 8;
    /// Ours, in responses only, where frontends look at nothing: it was a request.
    pub const ANSWERED: u16 = 1 << 15;
    pub const RX_DATA_VALIDATED: u16 = 1;
    pub const RX_CSUM_BLANK: u16 = 2;
    pub const RX_MORE_DATA: u16 = 4;
    pub const RX_EXTRA_INFO: u16 = 8;
}

/// Types of extra info: `XEN_NETIF_EXTRA_TYPE_`.
pub(crate) mod extra {
    pub const GSO: u8 = 1;
    pub const MCAST_ADD: u8 = 2;
    pub const MCAST_DEL: u8 = 3;
    pub const HASH: u8 = 4;
    /// Not in netif.h, where the last type is 5: see [`fetch`](crate::netif::guest_copy).
    pub const FETCH: u8 = 6;
    /// More extra info follows.
    pub const MORE: u8 = 1;
}

/// Segmentation of TCP over IPv4 (`XEN_NETIF_GSO_TYPE_`).
pub const GSO_TCPV4: u8 = 1;
/// Segmentation of TCP over IPv6.
pub const GSO_TCPV6: u8 = 2;

/// Outcomes: `NETIF_RSP_`.
pub(crate) mod rsp {
    pub const OKAY: i16 = 0;
    pub const ERROR: i16 = -1;
    /// For slots that held extra info.
    pub const NULL: i16 = 1;
}

/// A request of a Tx ring that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    reference: u32,
    offset: u16,
    flags: u16,
    id: u16,
    size: u16,
}

impl Request {
    fn of([reference, place, rest]: TxSlot) -> Self {
        Request {
            reference,
            offset: place as u16,
            flags: (place >> 16) as u16,
            id: rest as u16,
            size: (rest >> 16) as u16,
        }
    }

    fn piece(&self) -> Result<Piece, Fault> {
        match usize::from(self.offset) + usize::from(self.size) <= PAGE {
            true => Ok(Piece { reference: self.reference, offset: self.offset, len: self.size }),
            false => Err(Fault::CrossesPage),
        }
    }
}

/// Bytes of a packet: within one granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The grant.
    pub reference: u32,
    /// Where in the page they begin.
    pub offset: u16,
    /// How many.
    pub len: u16,
}

/// What a frontend says of a frame's offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The checksum holds the pseudo header's sum only.
    pub csum_blank: bool,
    /// Type and size of segments.
    pub gso: Option<(u8, u16)>,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A frame.
    Frame(Meta),
    /// A frame that nobody can take: in too many slots.
    TooLong,
    /// A frame whose parts are larger than the whole: one of 64 KiB or more, from a frontend that
    /// does not know its limits.
    Overflown,
    /// No frame, but a group to be received from now on, or not any more.
    Group {
        /// Whether to receive it.
        join: bool,
        /// The group.
        group: Mac,
    },
}

/// A packet of a Tx ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Slots that it takes in the ring.
    pub slots: u32,
    /// What it is.
    pub what: What,
}

/// Reads the next packet out of a ring in which `ready` slots are published: `slot` copies the nth
/// of them. The pieces of a frame replace what is in `pieces`, and `responses` gets one response
/// for each slot.
///
/// # Errors
/// What makes the frontend's vif stop.
pub fn next_packet(
    ready: u32,
    slot: impl Fn(u32) -> TxSlot,
    pieces: &mut Vec<Piece>,
    responses: &mut Vec<TxSlot>,
) -> Result<Packet, Fault> {
    pieces.clear();
    responses.clear();
    if ready == 0 {
        return Err(Fault::Torn);
    }
    let words = slot(0);
    let mut first = Request::of(words);
    responses.push(response(words, rsp::OKAY));
    let mut slots = 1;
    let mut meta = Meta { csum_blank: first.flags & flag::TX_CSUM_BLANK != 0, gso: None };
    let mut group = None;
    let mut more = first.flags & flag::TX_EXTRA_INFO != 0;
    while more {
        if slots == ready {
            return Err(Fault::Torn);
        }
        if slots > EXTRAS {
            return Err(Fault::EndlessExtras);
        }
        let words = slot(slots);
        let [head, tail, _] = words;
        let [kind, flags, a0, a1] = head.to_le_bytes();
        let [a2, a3, a4, a5] = tail.to_le_bytes();
        match kind {
            extra::GSO if matches!(a2, GSO_TCPV4 | GSO_TCPV6) && [a0, a1] != [0, 0] => {
                meta.gso = Some((a2, u16::from_le_bytes([a0, a1])));
            }
            extra::GSO => return Err(Fault::BadGso),
            extra::MCAST_ADD | extra::MCAST_DEL => {
                group = Some(What::Group {
                    join: kind == extra::MCAST_ADD,
                    group: Mac([a0, a1, a2, a3, a4, a5]),
                });
            }
            // How the frontend would have spread it is its own business.
            extra::HASH => {}
            _ => return Err(Fault::ExtraType),
        }
        responses.push(no_response(words));
        slots += 1;
        more = flags & extra::MORE != 0;
    }
    if let Some(what) = group {
        // Its request is a dummy.
        return Ok(Packet { slots, what });
    }
    let mut what = What::Frame(meta);
    pieces.push(Piece { reference: first.reference, offset: first.offset, len: 0 });
    let mut more = first.flags & flag::TX_MORE_DATA != 0;
    let mut data = 1;
    while more {
        if slots == ready {
            return Err(Fault::Torn);
        }
        if data == FATAL_SLOTS {
            return Err(Fault::TooManySlots);
        }
        let words = slot(slots);
        let request = Request::of(words);
        let piece = request.piece()?;
        responses.push(response(words, rsp::OKAY));
        match first.size.checked_sub(request.size) {
            Some(rest) => first.size = rest,
            None => what = What::Overflown,
        }
        pieces.push(piece);
        (slots, data) = (slots + 1, data + 1);
        if data > SLOTS && what != What::Overflown {
            what = What::TooLong;
        }
        more = request.flags & flag::TX_MORE_DATA != 0;
    }
    if let What::Frame(_) = what {
        // The first slot says how long the whole is; what the others do not have, it has.
        let whole = first.piece()?;
        if let Some(piece) = pieces.first_mut() {
            *piece = whole;
        }
    } else {
        pieces.clear();
        refuse(responses);
    }
    Ok(Packet { slots, what })
}

/// The response to a request: its number and an outcome, in the place of the grant reference. The
/// rest is left as it is, but for a mark; frontends do not look at it. It helps whoever finds the
/// ring with responses that were never published.
fn response([_, place, rest]: TxSlot, status: i16) -> TxSlot {
    [rest & 0xffff | u32::from(status as u16) << 16, place | u32::from(flag::ANSWERED) << 16, rest]
}

/// Whether what looks like a request is a response that was never published.
pub fn is_answered([_, place, _]: TxSlot) -> bool {
    (place >> 16) as u16 & flag::ANSWERED != 0
}

/// Makes the responses to a packet say that nothing was done for it.
pub fn refuse(responses: &mut [TxSlot]) {
    for response in responses {
        if response_status(*response) == rsp::OKAY {
            set_status(response, rsp::ERROR);
        }
    }
}

/// What stands in the place of extra info.
fn no_response(mut words: TxSlot) -> TxSlot {
    set_status(&mut words, rsp::NULL);
    words
}

fn set_status(response: &mut TxSlot, status: i16) {
    response[0] = response[0] & 0xffff | u32::from(status as u16) << 16;
}

fn response_status(slot: TxSlot) -> i16 {
    (slot[0] >> 16) as i16
}

/// What a frontend left to be done to a frame of `len` bytes that begins with `head`. Believed only
/// as far as it fits the frame; a segmentation without checksum offload, which some frontends ask
/// for, is made one with.
///
/// # Errors
/// Why the frame is to be dropped.
pub fn offload(
    meta: Meta,
    head: &mut Head,
    headers: &Headers,
    len: u32,
) -> Result<Offload, BadOffload> {
    let mut offload = Offload::default();
    if !meta.csum_blank && meta.gso.is_none() {
        return Ok(offload);
    }
    if headers.fragment {
        return Err(BadOffload::Fragment);
    }
    let offset = match headers.l4 {
        L4::Tcp => 16,
        L4::Udp => 6,
        L4::None | L4::Other => return Err(BadOffload::CsumPlace),
    };
    let start = u16::from(headers.l4_at);
    offload.csum = Some(PartialCsum { start, offset });
    let Some((kind, size)) = meta.gso else { return Ok(offload) };
    let kind = match (kind, headers.l3, headers.l4) {
        (GSO_TCPV4, L3::V4, L4::Tcp) => GsoKind::TcpV4,
        (GSO_TCPV6, L3::V6, L4::Tcp) => GsoKind::TcpV6,
        _ => return Err(BadOffload::GsoProtocol),
    };
    if !meta.csum_blank {
        let at = usize::from(start + offset);
        let sum = pseudo_sum(head.as_slice(), headers, len).ok_or(BadOffload::CsumRange)?;
        let field = head.as_mut_slice().get_mut(at..at + 2).ok_or(BadOffload::CsumRange)?;
        field.copy_from_slice(&sum.to_be_bytes());
    }
    let payload = len.checked_sub(u32::from(headers.end)).ok_or(BadOffload::Truncated)?;
    offload.gso = (payload > u32::from(size)).then_some(Gso { kind, size, ecn: false });
    Ok(offload)
}

/// The pseudo header's sum, for a transport header that begins at `l4_at` and reaches to the
/// frame's end.
fn pseudo_sum(head: &[u8], headers: &Headers, len: u32) -> Option<u16> {
    let l3 = usize::from(headers.l3_at);
    let transport = len.checked_sub(u32::from(headers.l4_at))?;
    let mut sum = Sum::new();
    match headers.l3 {
        L3::V4 => {
            let (src, dst) = (head.get(l3 + 12..l3 + 16)?, head.get(l3 + 16..l3 + 20)?);
            sum.add_pseudo_v4(src.try_into().ok()?, dst.try_into().ok()?, headers.proto, transport);
        }
        L3::V6 => {
            let (src, dst) = (head.get(l3 + 8..l3 + 24)?, head.get(l3 + 24..l3 + 40)?);
            sum.add_pseudo_v6(src.try_into().ok()?, dst.try_into().ok()?, headers.proto, transport);
        }
        L3::None => return None,
    }
    Some(sum.fold())
}

/// How many bytes a receiver pulls out of a frame's first slot. A first slot with no more than that
/// is not counted among those that it can hold, by Linux' frontend.
const PULLED: u16 = 256;

/// How many bytes of a frame go to each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    bytes: [u16; PAGES],
    count: u8,
}

impl Sizes {
    /// For a frame of `len` bytes, of which `head` are private and the others lie in `pieces`, if
    /// they are granted.
    ///
    /// Each copy costs the hypervisor about as much as half a page's bytes, and a piece that goes
    /// to two pages is two. So pieces are kept whole, as far as the receiver has slots for
    /// that: otherwise pages are filled.
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

    /// How many bytes go to page number `page`, if it has any.
    #[inline]
    pub fn page(&self, page: usize) -> Option<u32> {
        self.bytes[..usize::from(self.count)].get(page).map(|bytes| u32::from(*bytes))
    }

    /// Those, if a frame may have so many.
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

/// How a frame is laid out in the slots of an Rx ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    sizes: Sizes,
    shifts: Shifts,
    flags: u16,
    gso: Option<(u8, u16)>,
}

impl Layout {
    /// For a frame of those sizes with this offload. `None` when slots cannot say what is left to
    /// be done to it, or there are no sizes: `headers` are those that its receiver will find.
    pub fn of(
        sizes: Option<Sizes>,
        offload: &Offload,
        headers: impl FnOnce() -> Option<Headers>,
    ) -> Option<Self> {
        let sizes = sizes?;
        let mut flags = if offload.valid { flag::RX_DATA_VALIDATED } else { 0 };
        if let Some(csum) = offload.csum {
            // The receiver looks for the checksum by itself.
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

    /// Its bytes begin where copies of them are aligned: `head` are private, the others lie in
    /// `pieces` (see [`Shifts::of`]).
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

    /// How many bytes slot number `n` holds; `None`: extra info.
    pub fn size(&self, n: u32) -> Option<u16> {
        self.answer(n, [0; 2]).1
    }

    /// The response in slot number `n`, whose request was `request`.
    pub fn response(&self, n: u32, request: RxSlot) -> RxSlot {
        self.answer(n, request).0
    }

    /// The response in slot number `n`, whose request was `request`, and how many bytes it holds;
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

/// Turns the first response of a frame into one that says that there is no frame.
pub fn spoil(response: &mut RxSlot) {
    response[1] = response[1] & 0xffff | u32::from(rsp::ERROR as u16) << 16;
}

/// Where in its page a response of an Rx ring says that the bytes begin.
pub fn rx_offset(response: RxSlot) -> u16 {
    (response[0] >> 16) as u16
}

/// The response that says that a whole frame of `len` bytes, of which nothing else is known, begins
/// at `offset` of page `id`.
pub fn rx_response(id: u16, offset: u16, len: u16) -> RxSlot {
    [u32::from(id) | u32::from(offset) << 16, u32::from(len) << 16]
}

/// The grant that a request of an Rx ring names.
pub fn rx_reference(request: RxSlot) -> u32 {
    request[1]
}

#[cfg(test)]
mod tests;
