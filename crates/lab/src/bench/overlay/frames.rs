//! The frames that guests of two hosts exchange.

use frame::offload::{Gso, GsoKind, Offload, PartialCsum};
use frame::vnet;

use crate::isolation::neighbour;
use crate::isolation::station::VNET;

/// Bytes of Ethernet and IPv4 headers.
const L3: usize = 14 + 20;
/// Bytes of Ethernet, IPv4 and UDP headers.
const UDP: usize = L3 + 8;
/// Bytes of Ethernet, IPv4 and TCP headers.
const TCP: usize = L3 + 20;
/// Payload bytes of a TCP segment, in packets of 1450 bytes.
const MSS: usize = 1410;
/// The first source port.
const PORT: u16 = 20_000;

/// Numbers of the guest that sends and of the one that receives, from which their addresses are
/// derived.
pub(super) const NUMBERS: [u8; 2] = [1, 2];

/// Ports and sequence number in a frame, `virtio_net_hdr` included: what differs from frame to
/// frame.
pub(super) const VARYING: usize = VNET + L3;

/// The kind of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    /// Bytes of a frame.
    len: usize,
    /// Flows, which take turns frame by frame.
    flows: u32,
    /// Whether frames are TCP, to be segmented. Others are UDP.
    pub(super) tso: bool,
}

impl Traffic {
    /// The longest frames of full segments, in eight flows.
    pub(super) const TSO: Traffic = Traffic { len: TCP + 46 * MSS, flows: 8, tso: true };

    /// The frames of a guest that segments for itself, in as many flows.
    pub(super) const SEGMENTED: Traffic = Traffic::udp(1464, 8);

    /// UDP datagrams.
    pub(super) const fn udp(len: usize, flows: u32) -> Traffic {
        Traffic { len, flows, tso: false }
    }

    /// Bits of a frame.
    pub(super) fn bits(self) -> f64 {
        self.len as f64 * 8.0
    }

    /// Bytes of a frame's headers, which every segment of the frame has.
    pub(super) fn headers(self) -> usize {
        if self.tso { TCP } else { UDP }
    }

    /// Payload bytes of a frame.
    pub(super) fn payload(self) -> usize {
        self.len - self.headers()
    }

    /// Frames that may be under way. The segments of all of them fit into the queue of a TAP
    /// device, which holds 1000.
    pub(super) fn window(self) -> usize {
        if self.tso { 16 } else { 256 }
    }

    /// Bytes of a receiver's buffer. Longer frames fill several.
    pub(super) fn rx_buffer(self) -> usize {
        if self.tso { 4096 } else { 2048 }
    }

    /// A frame with a `virtio_net_hdr` before it.
    pub(super) fn frame(self) -> Vec<u8> {
        let [from, to] = NUMBERS.map(neighbour::address);
        let mut bytes = self.offload().to_vec();
        bytes.extend(to);
        bytes.extend(from);
        bytes.extend([0x08, 0x00]);
        bytes.extend(self.ip_header());
        let l4 = self.len - L3;
        bytes.extend([PORT, PORT].map(u16::to_be_bytes).concat());
        if self.tso {
            // Sequence and acknowledgement numbers, a header of 20 bytes, ACK, the window.
            bytes.extend([0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
            bytes.extend(pseudo_header_sum(l4).to_be_bytes());
            bytes.extend([0, 0]);
        } else {
            bytes.extend((l4 as u16).to_be_bytes());
            // No checksum.
            bytes.extend([0, 0]);
        }
        bytes.resize(VNET + self.len, 0x5a);
        bytes
    }

    fn offload(self) -> [u8; frame::VNET_LEN] {
        let tcp = Offload {
            csum: Some(PartialCsum { start: L3 as u16, offset: 16 }),
            gso: Some(Gso { kind: GsoKind::TcpV4, size: MSS as u16, ecn: false }),
            ..Offload::default()
        };
        let offload = if self.tso { tcp } else { Offload::default() };
        vnet::encode(&offload, self.headers() as u16)
    }

    fn ip_header(self) -> [u8; 20] {
        let len = ((self.len - 14) as u16).to_be_bytes();
        let protocol = if self.tso { 6 } else { 17 };
        let mut header = [
            0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 30, 0, 1, 10, 30, 0, 2,
        ];
        let sum = frame::checksum::Sum::of(&header).checksum();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    /// The bytes at [`VARYING`] of frame number `n`: both ports, and for TCP the sequence number.
    pub(super) fn varying(self, n: u64) -> ([u8; 8], usize) {
        let flows = u64::from(self.flows);
        let port = PORT + (n % flows) as u16;
        let sequence = (n / flows * self.payload() as u64) as u32;
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&port.to_be_bytes());
        bytes[2..4].copy_from_slice(&PORT.to_be_bytes());
        bytes[4..].copy_from_slice(&sequence.to_be_bytes());
        (bytes, if self.tso { 8 } else { 4 })
    }
}

/// The sum that the sender of a partial checksum leaves in the header.
fn pseudo_header_sum(l4: usize) -> u16 {
    let mut sum = frame::checksum::Sum::default();
    sum.add_pseudo_v4([10, 30, 0, 1], [10, 30, 0, 2], 6, l4 as u32);
    sum.fold()
}
