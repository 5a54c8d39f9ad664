//! The frames that a guest sends: heads of a few flows, one after the other. The bytes behind a
//! head are those that lie in the buffer already.

use xen::netif::slots::{GSO_TCPV4, Meta};

use super::load::Size;

/// Flows of a queue.
const FLOWS: u8 = 8;
/// Payload of a segment, and segments of a large frame.
const SEGMENT: u16 = 1448;
const SEGMENTS: usize = 44;
const TCP_HEAD: usize = 14 + 20 + 32;
const SMALL: usize = 64;

/// Frames from one guest to another.
#[derive(Clone, Debug)]
pub struct Frames {
    heads: Vec<Vec<u8>>,
    len: usize,
    meta: Meta,
    next: usize,
}

impl Frames {
    /// Frames of this size, on queue number `queue`.
    pub fn new(size: Size, from: [u8; 6], to: [u8; 6], queue: u8) -> Frames {
        let (len, meta) = match size {
            Size::Small => (SMALL, Meta::default()),
            Size::Large => {
                let len = TCP_HEAD + usize::from(SEGMENT) * SEGMENTS;
                (len, Meta { csum_blank: true, gso: Some((GSO_TCPV4, SEGMENT)) })
            }
        };
        let heads =
            (0..FLOWS).map(|flow| head(size, (from, to), len, queue * FLOWS + flow)).collect();
        Frames { heads, len, meta, next: 0 }
    }

    /// The head of the next frame, its length, and the offloads that it needs.
    pub fn next(&mut self) -> (&[u8], usize, Meta) {
        self.next = (self.next + 1) % self.heads.len().max(1);
        (self.heads.get(self.next).map(Vec::as_slice).unwrap_or_default(), self.len, self.meta)
    }
}

fn head(size: Size, (from, to): ([u8; 6], [u8; 6]), len: usize, flow: u8) -> Vec<u8> {
    let protocol = if size == Size::Small { 17 } else { 6 };
    let mut head = [&to[..], &from, &[8, 0, 0x45, 0]].concat();
    head.extend(((len - 14) as u16).to_be_bytes());
    head.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, from[5], 10, 0, 0, to[5]]);
    head.extend([0x10, flow, 0x20, flow]);
    match size {
        Size::Small => {
            head.extend(((len - 34) as u16).to_be_bytes());
            head.resize(SMALL, 0);
        }
        Size::Large => {
            // Sequence numbers, eight words of header, ACK; the checksums are offloaded.
            head.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 1, 0, 0, 0, 0, 0]);
            head.resize(TCP_HEAD, 1);
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_match_their_names() {
        for size in [Size::Small, Size::Large] {
            let mut frames = Frames::new(size, [2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1);
            let mut hashes = std::collections::BTreeSet::new();
            for _ in 0..FLOWS {
                let (bytes, len, meta) = frames.next();
                let headers = frame::parse(bytes).unwrap();
                assert_eq!(usize::from(u16::from_be_bytes([bytes[16], bytes[17]])), len - 14);
                hashes.insert(frame::flow_hash(&headers, bytes));
                let mut head = frame::Head::new();
                head.fill(|room| {
                    room[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                });
                let offload =
                    xen::netif::slots::offload(meta, &mut head, &headers, len as u32).unwrap();
                assert_eq!(offload.gso.is_some(), size == Size::Large);
            }
            assert_eq!(hashes.len(), usize::from(FLOWS));
        }
    }
}
