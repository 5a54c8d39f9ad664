//! What the kernel put into a buffer of the underlay.

use std::net::IpAddr;

use frame::VNET_LEN;
use frame::vxlan::VXLAN_LEN;
use overlay::Refusal;

/// What a buffer was filled with: a datagram, or several of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The buffer's number.
    pub buffer: u16,
    /// Where the payload of the first datagram begins in the buffer.
    pub at: u32,
    /// Bytes of all payloads.
    pub len: u32,
    /// Bytes of each payload but the last, which may be shorter: at least 1.
    pub segment: u32,
    /// The sender, or why the datagrams are refused.
    pub source: Result<IpAddr, Refusal>,
    /// The VXLAN header of the only datagram, if it has been read.
    pub header: Option<[u8; VXLAN_LEN]>,
    /// The offloads of the inner frame, which is the only one.
    pub offload: Option<[u8; VNET_LEN]>,
}

impl Arrival {
    /// A buffer with a datagram that is refused.
    pub fn refused(buffer: u16, refusal: Refusal) -> Arrival {
        let source = Err(refusal);
        Arrival { buffer, at: 0, len: 1, segment: 1, source, header: None, offload: None }
    }
}
