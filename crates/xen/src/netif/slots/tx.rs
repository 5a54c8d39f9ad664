//! Packets out of the requests of a Tx ring, and the responses to them.

use frame::Mac;
use ring::grant::PAGE;

use super::{FATAL_SLOTS, GSO_TCPV4, GSO_TCPV6, Meta, SLOTS, TxSlot, extra, flag, rsp};
use crate::netif::fault::Fault;

/// Extra info slots of a packet: one of each type.
pub(super) const EXTRAS: u32 = 4;

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
    /// The offset in the page.
    pub offset: u16,
    /// How many.
    pub len: u16,
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A frame.
    Frame(Meta),
    /// A frame in more slots than a receiver accepts.
    TooLong,
    /// A frame whose parts are larger than the whole: one of 64 KiB or more, from a frontend that
    /// does not know its limits.
    Overflown,
    /// Not a frame, but a multicast group that the frontend joins or leaves.
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
    /// Slots of the packet in the ring.
    pub slots: u32,
    /// The kind of the packet.
    pub what: What,
}

/// Reads the next packet out of a ring in which `ready` slots are published: `slot` copies the nth
/// of them. The pieces of a frame replace what is in `pieces`, and `responses` gets one response
/// for each slot.
///
/// # Errors
/// The fault that makes the frontend's vif stop.
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
            // The frontend's own distribution of bytes over slots does not matter.
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
        // The first slot holds the length of the whole packet; its own data is the part that the
        // other slots do not have.
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

/// The response to a request: its id and a status, in the place of the grant reference. The other
/// fields stay, except for a mark, which frontends ignore. The mark helps a later daemon that finds
/// responses which were never published.
pub(super) fn response([_, place, rest]: TxSlot, status: i16) -> TxSlot {
    [rest & 0xffff | u32::from(status as u16) << 16, place | u32::from(flag::ANSWERED) << 16, rest]
}

/// Whether a slot that looks like a request is a response that was never published.
pub fn is_answered([_, place, _]: TxSlot) -> bool {
    (place >> 16) as u16 & flag::ANSWERED != 0
}

/// Turns the responses to a packet into error responses.
pub fn refuse(responses: &mut [TxSlot]) {
    for response in responses {
        if response_status(*response) == rsp::OKAY {
            set_status(response, rsp::ERROR);
        }
    }
}

/// A response in the place of extra info.
fn no_response(mut words: TxSlot) -> TxSlot {
    set_status(&mut words, rsp::NULL);
    words
}

fn set_status(response: &mut TxSlot, status: i16) {
    response[0] = response[0] & 0xffff | u32::from(status as u16) << 16;
}

pub(super) fn response_status(slot: TxSlot) -> i16 {
    (slot[0] >> 16) as i16
}
