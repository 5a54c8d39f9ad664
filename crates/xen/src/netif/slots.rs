//! Packets in slots: from the requests of a Tx ring to packets, and from frames to the responses of
//! an Rx ring (xen/include/public/io/netif.h).
//!
//! Pure functions over copies of the slots, which are read out of the ring once (XSA-155). A slot
//! is an array of words of four bytes, little endian; lengths and offsets are in bytes.
//!
//! # What a hostile frontend could try
//!
//! Packets without an end, in more slots than any frame needs, or with extra info that never ends:
//! every loop over slots has a bound, and beyond it the vif is stopped. Slots that reach beyond
//! their page, or parts that are longer than the whole: checked before a copy is made. Offloads
//! that do not fit the frame: the frame is dropped under a counter's name.

pub mod align;
mod layout;
mod offload;
mod sizes;
mod tx;

pub use layout::{Layout, rx_offset, rx_reference, rx_response, spoil};
pub use offload::offload;
pub use sizes::Sizes;
pub use tx::{Packet, Piece, What, is_answered, next_packet, refuse};

/// One slot of a Tx ring.
pub type TxSlot = [u32; 3];
/// One slot of an Rx ring.
pub type RxSlot = [u32; 2];

/// Data slots that a packet may have: the first, and 18 more (netif.h asks for 18 in all; Linux'
/// backend counts like this).
pub const SLOTS: u32 = 1 + 18;
/// Data slots beyond which a frontend counts as hostile, as with Linux' backend. Packets between
/// the two limits are dropped.
pub const FATAL_SLOTS: u32 = 1 + 20;
/// Most pages of a frame: netif.h promises that a receiver accepts this number.
pub const PAGES: usize = 18;
/// Flags of a request or a response: `NETTXF_`, `NETRXF_`, which are the same bits but in another
/// order.
pub(crate) mod flag {
    pub const TX_CSUM_BLANK: u16 = 1;
    pub const TX_DATA_VALIDATED: u16 = 2;
    pub const TX_MORE_DATA: u16 = 4;
    pub const TX_EXTRA_INFO: u16 = 8;
    /// A mark of this backend, in responses only, in a bit that frontends ignore: the slot was
    /// answered.
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

/// The offloads that a frontend's slots describe for a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The checksum holds the pseudo header's sum only.
    pub csum_blank: bool,
    /// Type and size of segments.
    pub gso: Option<(u8, u16)>,
}

#[cfg(test)]
mod tests;
