//! Work that a sender left undone: passed on to a receiver that takes it, and done right for one
//! that does not.

use crate::peer::{Peer, port, wait};
use frame::{Accepts, GsoKind, Mac};
use network::fabric::{Fabric, Workers};
use switch::{PortRule, Vlan};

const MSS: usize = 1000;
const PAYLOAD: usize = 5 * MSS + 17;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    v6: bool,
    udp: bool,
    ecn: bool,
}

impl Kind {
    fn ip_len(self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    fn l4_len(self) -> usize {
        if self.udp { 8 } else { 32 }
    }

    fn csum_at(self) -> usize {
        if self.udp { 6 } else { 16 }
    }

    fn gso(self) -> GsoKind {
        match (self.v6, self.udp) {
            (false, false) => GsoKind::TcpV4,
            (true, false) => GsoKind::TcpV6,
            (false, true) => GsoKind::UdpV4,
            (true, true) => GsoKind::UdpV6,
        }
    }

    fn vnet(self) -> [u8; 12] {
        let kind = if self.udp { 5 } else { [1, 4][usize::from(self.v6)] }
            | if self.ecn { 0x80 } else { 0 };
        let mut vnet = [1, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        vnet[4..6].copy_from_slice(&(MSS as u16).to_le_bytes());
        vnet[6..8].copy_from_slice(&(14 + self.ip_len() as u16).to_le_bytes());
        vnet[8..10].copy_from_slice(&(self.csum_at() as u16).to_le_bytes());
        vnet
    }

    /// A frame with its checksum left open, as a guest's kernel makes it.
    fn frame(self, payload: &[u8]) -> Vec<u8> {
        let l4 = (self.l4_len() + payload.len()) as u16;
        let proto = if self.udp { 17 } else { 6 };
        let mut frame = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0].to_vec();
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(l4.to_be_bytes());
            frame.extend([proto, 64]);
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        } else {
            frame.extend([8, 0, 0x45, if self.ecn { 2 } else { 0 }]);
            frame.extend((l4 + 20).to_be_bytes());
            frame.extend([0, 7, 0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = fold(sum(&frame[14..34]));
            frame[24..26].copy_from_slice(&(!sum).to_be_bytes());
        }
        frame.extend([0x12, 0x34, 0x56, 0x78]);
        if self.udp {
            frame.extend(l4.to_be_bytes());
            frame.extend([0, 0]);
        } else {
            // ACK, PSH, and CWR where ECN is used; twelve bytes of options (two NOPs and a time
            // stamp).
            frame.extend([
                0,
                0,
                1,
                0,
                0,
                0,
                2,
                0,
                0x80,
                if self.ecn { 0x98 } else { 0x18 },
                255,
                255,
                0,
                0,
                0,
                0,
            ]);
            frame.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        let pseudo = fold(self.pseudo(&frame, u32::from(l4)));
        let at = 14 + self.ip_len() + self.csum_at();
        frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Sum of the pseudo header of an untagged frame.
    fn pseudo(self, frame: &[u8], l4_len: u32) -> u32 {
        let addresses = if self.v6 { 22..54 } else { 26..34 };
        sum(&frame[addresses]) + if self.udp { 17 } else { 6 } + l4_len
    }

    /// Checks an untagged segment, whose checksum is complete or only the pseudo header's; returns
    /// its payload.
    fn check(self, segment: &[u8], complete: bool) -> Vec<u8> {
        let (l3, l4) = (14, 14 + self.ip_len());
        let l4_len = segment.len() - l4;
        if self.v6 {
            assert_eq!(usize::from(u16::from_be_bytes([segment[18], segment[19]])), l4_len);
        } else {
            assert_eq!(usize::from(u16::from_be_bytes([segment[16], segment[17]])), l4_len + 20);
            assert_eq!(fold(sum(&segment[l3..l4])), 0xffff, "IPv4 header checksum");
        }
        let pseudo = self.pseudo(segment, l4_len as u32);
        if complete {
            assert_eq!(fold(pseudo + sum(&segment[l4..])), 0xffff, "{self:?}: transport checksum");
        } else {
            let at = l4 + self.csum_at();
            assert_eq!(
                u16::from_be_bytes([segment[at], segment[at + 1]]),
                fold(pseudo),
                "{self:?}: partial checksum"
            );
        }
        segment[l4 + self.l4_len()..].to_vec()
    }
}

fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
        .sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn kinds() -> impl Iterator<Item = Kind> {
    let all =
        [(false, false, false), (true, false, false), (false, true, false), (true, true, false)];
    let ecn = [(false, false, true), (true, false, true)];
    all.into_iter().chain(ecn).map(|(v6, udp, ecn)| Kind { v6, udp, ecn })
}

fn payload() -> Vec<u8> {
    (0..PAYLOAD as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
}

/// Sends one frame of `kind` to a receiver behind a port with `vlan`, and returns what arrives: `n`
/// frames.
fn deliver(
    kind: Kind,
    accepts: Accepts,
    vlan: Vlan,
    n: usize,
) -> (Vec<Vec<u8>>, Vec<frame::Offload>) {
    let fabric = Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap();
    let from = if vlan == Vlan::None { Vlan::None } else { Vlan::Access(10) };
    let sender = port(&fabric, PortRule { vlan: from, mac: None }).0;
    let receiver = port(&fabric, PortRule { vlan, mac: Some(Mac([2, 0, 0, 0, 0, 1])) }).0;
    let a = Peer::attach(&fabric, sender, 0, Accepts::ALL, usize::MAX);
    let b = Peer::attach(&fabric, receiver, 0, accepts, usize::MAX);
    a.send_with(kind.vnet(), &kind.frame(&payload()));
    let frames = b.expect(n);
    wait(|| a.completed() == 1);
    assert_eq!(frames.len(), n, "{kind:?} to {accepts:?}");
    (frames, b.left_to_do())
}

#[test]
fn a_receiver_that_takes_it_gets_the_frame_as_it_was_sent() {
    for kind in kinds() {
        let (frames, offloads) = deliver(kind, Accepts::ALL, Vlan::None, 1);
        assert_eq!(frames[0], kind.frame(&payload()), "{kind:?}");
        let gso = offloads[0].gso.expect("still one for many");
        assert_eq!((gso.kind, usize::from(gso.size), gso.ecn), (kind.gso(), MSS, kind.ecn));
    }
}

#[test]
fn a_receiver_that_takes_nothing_gets_whole_segments() {
    for kind in kinds() {
        let (frames, offloads) = deliver(kind, Accepts::default(), Vlan::None, 6);
        let joined: Vec<u8> = frames.iter().flat_map(|frame| kind.check(frame, true)).collect();
        assert_eq!(joined, payload(), "{kind:?}");
        assert!(offloads.iter().all(|offload| offload.csum.is_none() && offload.gso.is_none()));
        if !kind.udp {
            check_tcp(kind, &frames);
        }
    }
}

/// Sequence numbers go on; CWR is on the first segment only, PSH on the last.
fn check_tcp(kind: Kind, frames: &[Vec<u8>]) {
    let l4 = 14 + kind.ip_len();
    for (i, frame) in frames.iter().enumerate() {
        let seq = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
        assert_eq!(seq, 0x100 + (i * MSS) as u32);
        let (first, last) = (i == 0, i + 1 == frames.len());
        let flags = frame[l4 + 13];
        assert_eq!(flags & 0x80 != 0, first && kind.ecn, "{kind:?}: CWR of segment {i}");
        assert_eq!(flags & 0x08 != 0, last, "{kind:?}: PSH of segment {i}");
    }
}

#[test]
fn a_receiver_that_takes_checksums_only_gets_segments_with_those_open() {
    let accepts = Accepts { csum: true, ..Accepts::default() };
    for kind in kinds() {
        let (frames, offloads) = deliver(kind, accepts, Vlan::None, 6);
        let joined: Vec<u8> = frames.iter().flat_map(|frame| kind.check(frame, false)).collect();
        assert_eq!(joined, payload(), "{kind:?}");
        for offload in offloads {
            let csum = offload.csum.expect("left open");
            assert_eq!(usize::from(csum.start), 14 + kind.ip_len());
            assert_eq!(usize::from(csum.offset), kind.csum_at());
        }
    }
}

#[test]
fn a_receiver_without_ecn_gets_segments_of_what_used_it() {
    let accepts = Accepts { ecn: false, ..Accepts::ALL };
    for kind in kinds().filter(|kind| kind.ecn) {
        let (frames, _) = deliver(kind, accepts, Vlan::None, 6);
        check_tcp(kind, &frames);
    }
}

#[test]
fn a_tag_goes_onto_every_segment() {
    for kind in kinds() {
        for (accepts, n) in [(Accepts::ALL, 1), (Accepts::default(), 6)] {
            let (frames, offloads) = deliver(kind, accepts, Vlan::Trunk(vec![10]), n);
            let mut joined = Vec::new();
            for (frame, offload) in frames.iter().zip(offloads) {
                assert_eq!(frame[12..16], [0x81, 0, 0, 10], "{kind:?}");
                let untagged = [&frame[..12], &frame[16..]].concat();
                joined.extend(kind.check(&untagged, n > 1));
                if let Some(csum) = offload.csum {
                    assert_eq!(usize::from(csum.start), 18 + kind.ip_len());
                }
            }
            assert_eq!(joined, payload(), "{kind:?}");
        }
    }
}
