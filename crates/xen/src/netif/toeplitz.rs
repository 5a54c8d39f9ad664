//! The Toeplitz hash of netif.h. A frontend chooses the key, so that it can compute the queue on
//! which frames will arrive.
//!
//! Missing bytes of the key are zero. There are no types for UDP: a datagram is hashed by its
//! addresses, or not at all.

use frame::{Headers, L3, L4};

/// Longest key: enough for every bit of the longest input, and 32 bits more.
pub const MAX_KEY: usize = 40;

/// Longest input: two IPv6 addresses and two ports.
const MAX_INPUT: usize = 36;

/// Fields that are hashed: bits of `XEN_NETIF_CTRL_HASH_TYPE_`.
pub mod kind {
    /// IPv4 addresses.
    pub const IPV4: u32 = 1;
    /// IPv4 addresses and TCP ports.
    pub const IPV4_TCP: u32 = 2;
    /// IPv6 addresses.
    pub const IPV6: u32 = 4;
    /// IPv6 addresses and TCP ports.
    pub const IPV6_TCP: u32 = 8;
    /// All of them.
    pub const ALL: u32 = 15;
}

/// A prepared key: for each half byte of the input and each of its values, the part that it adds to
/// the hash.
#[derive(Clone, Debug)]
pub struct Toeplitz {
    table: Box<[[u32; 16]; 2 * MAX_INPUT]>,
}

impl Toeplitz {
    /// Prepares `key`, of which the first [`MAX_KEY`] bytes count.
    pub fn new(key: &[u8]) -> Self {
        let mut whole = [0; MAX_KEY];
        whole.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        let mut table = Box::new([[0; 16]; 2 * MAX_INPUT]);
        for (half, values) in table.iter_mut().enumerate() {
            for (value, sum) in values.iter_mut().enumerate() {
                let bits = (0..4).filter(|bit| value & 8 >> bit != 0);
                *sum = bits.fold(0, |sum, bit| sum ^ window(&whole, 4 * half + bit));
            }
        }
        Toeplitz { table }
    }

    /// The hash of `input`, of which the first 36 bytes count.
    pub fn hash(&self, input: &[u8]) -> u32 {
        let (pairs, _) = self.table.as_chunks::<2>();
        let sums = pairs.iter().zip(input).map(|([high, low], byte)| {
            high.get(usize::from(byte >> 4)).unwrap_or(&0)
                ^ low.get(usize::from(byte & 15)).unwrap_or(&0)
        });
        sums.fold(0, |hash, sum| hash ^ sum)
    }

    /// The hash of a frame whose head is `head`, over the fields that `kinds` allows. `None` when
    /// `kinds` allows none of the frame's fields.
    pub fn of_frame(&self, kinds: u32, headers: &Headers, head: &[u8]) -> Option<u32> {
        let (l3, l4) = (usize::from(headers.l3_at), usize::from(headers.l4_at));
        let (addresses, plain, tcp) = match headers.l3 {
            L3::V4 => (head.get(l3 + 12..l3 + 20)?, kind::IPV4, kind::IPV4_TCP),
            L3::V6 => (head.get(l3 + 8..l3 + 40)?, kind::IPV6, kind::IPV6_TCP),
            L3::None => return None,
        };
        if headers.l4 == L4::Tcp && kinds & tcp != 0 {
            let ports = head.get(l4..l4 + 4)?;
            let mut input = [0; MAX_INPUT];
            input.iter_mut().zip(addresses.iter().chain(ports)).for_each(|(to, from)| *to = *from);
            return Some(self.hash(input.get(..addresses.len() + ports.len())?));
        }
        (kinds & plain != 0).then(|| self.hash(addresses))
    }
}

/// 32 bits of the key from bit `at` on.
fn window(key: &[u8; MAX_KEY], at: usize) -> u32 {
    let bit = |n: usize| key.get(n / 8).map_or(0, |byte| u32::from(byte >> (7 - n % 8) & 1));
    (at..at + 32).fold(0, |bits, n| bits << 1 | bit(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the inputs of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn v4(src: [u8; 4], dst: [u8; 4], ports: Option<(u16, u16)>) -> Vec<u8> {
        let ports = ports.map(|(src, dst)| [src.to_be_bytes(), dst.to_be_bytes()].concat());
        [src.to_vec(), dst.to_vec(), ports.unwrap_or_default()].concat()
    }

    fn v6(src: &str, dst: &str, ports: Option<(u16, u16)>) -> Vec<u8> {
        let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec();
        let ports = ports.map(|(src, dst)| [src.to_be_bytes(), dst.to_be_bytes()].concat());
        [address(src), address(dst), ports.unwrap_or_default()].concat()
    }

    #[test]
    fn published_vectors_ipv4() {
        let toeplitz = Toeplitz::new(&KEY);
        let rows = [
            ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x323e_8fc2, 0x51cc_c178),
            ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xd718_262a, 0xc626_b0ea),
            ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0xd2d0_a5de, 0x5c2b_394a),
            ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0x8298_9176, 0xafc7_327f),
            ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x5d18_09c5, 0x10e8_28a2),
        ];
        for (src, sport, dst, dport, plain, tcp) in rows {
            assert_eq!(toeplitz.hash(&v4(src, dst, None)), plain);
            assert_eq!(toeplitz.hash(&v4(src, dst, Some((sport, dport)))), tcp);
        }
    }

    #[test]
    fn published_vectors_ipv6() {
        let toeplitz = Toeplitz::new(&KEY);
        let rows = [
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                "fe80::200:f8ff:fe21:67cf",
                38024,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        for (src, sport, dst, dport, plain, tcp) in rows {
            assert_eq!(toeplitz.hash(&v6(src, dst, None)), plain);
            assert_eq!(toeplitz.hash(&v6(src, dst, Some((sport, dport)))), tcp);
        }
    }

    /// The reference code of netif.h, unchanged.
    fn reference(key: &[u8], buf: &[u8]) -> u32 {
        let (mut prefix, mut hash, mut at) = (0u64, 0u64, 0);
        let byte = |n: usize| key.get(n).copied().map_or(0, u64::from);
        while at < 8 {
            prefix = prefix << 8 | byte(at);
            at += 1;
        }
        for byte_in in buf {
            let mut bits = *byte_in;
            for _ in 0..8 {
                if bits & 0x80 != 0 {
                    hash ^= prefix;
                }
                prefix <<= 1;
                bits <<= 1;
            }
            prefix |= byte(at);
            at += 1;
        }
        (hash >> 32) as u32
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_the_code_of_netif_h(key in proptest::collection::vec(0u8.., 0..41), input in proptest::collection::vec(0u8.., 0..37)) {
            proptest::prop_assert_eq!(Toeplitz::new(&key).hash(&input), reference(&key, &input));
        }
    }

    fn tcp4() -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend(v4([66, 9, 149, 187], [161, 142, 100, 80], Some((2794, 1766))));
        frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn the_fullest_kind_that_is_allowed_is_taken() {
        let toeplitz = Toeplitz::new(&KEY);
        let mut frame = tcp4();
        let hash =
            |kinds, frame: &[u8]| toeplitz.of_frame(kinds, &frame::parse(frame).unwrap(), frame);
        assert_eq!(hash(kind::ALL, &frame), Some(0x51cc_c178));
        assert_eq!(hash(kind::IPV4, &frame), Some(0x323e_8fc2));
        assert_eq!(hash(kind::IPV6 | kind::IPV6_TCP, &frame), None);
        // A fragment has no ports.
        frame[20] = 0x20;
        assert_eq!(hash(kind::ALL, &frame), Some(0x323e_8fc2));
        assert_eq!(hash(kind::IPV4_TCP, &frame), None);
    }
}
