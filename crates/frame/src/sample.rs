//! Frames for tests, built by `etherparse`, and a checksum that is too simple to be wrong.

use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv4Options, Ipv6Extensions, Ipv6Header, Ipv6RawExtHeader,
    Ipv6RoutingExtensions, PacketBuilder, TcpHeader,
};
use proptest::prelude::*;

pub const SRC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
pub const DST: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
pub const SRC_V4: [u8; 4] = [10, 1, 2, 3];
pub const DST_V4: [u8; 4] = [10, 9, 8, 7];
pub const SRC_V6: [u8; 16] = [0xfd, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
pub const DST_V6: [u8; 16] = [0xfd, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 99];

/// The layers of a frame.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Control information of 802.1Q tags, outermost first.
    pub tags: Vec<u16>,
    pub ip: Ip,
    pub tcp: bool,
    /// Length of TCP options in 32-bit words.
    pub tcp_options: u8,
    pub ports: (u16, u16),
    pub seq: u32,
    /// TCP flags of byte 13.
    pub flags: u8,
    pub payload: usize,
    /// Makes payloads differ.
    pub seed: u8,
}

#[derive(Clone, Debug)]
pub enum Ip {
    V4 {
        id: u16,
        /// Length of options in 32-bit words.
        options: u8,
    },
    V6 {
        hop_by_hop: bool,
        destination: bool,
        routing: bool,
    },
}

pub const TCP_V4: Recipe = Recipe {
    tags: Vec::new(),
    ip: Ip::V4 { id: 7, options: 0 },
    tcp: true,
    tcp_options: 3,
    ports: (40000, 80),
    seq: 1000,
    flags: 0x18,
    payload: 100,
    seed: 1,
};

pub const PLAIN_V6: Ip = Ip::V6 { hop_by_hop: false, destination: false, routing: false };

impl Recipe {
    pub fn udp(self) -> Recipe {
        Recipe { tcp: false, ..self }
    }

    pub fn v6(self) -> Recipe {
        Recipe { ip: PLAIN_V6, ..self }
    }

    pub fn is_v4(&self) -> bool {
        matches!(self.ip, Ip::V4 { .. })
    }

    pub fn l3_at(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    pub fn l4_at(&self) -> usize {
        self.l3_at()
            + match self.ip {
                Ip::V4 { options, .. } => 20 + 4 * usize::from(options),
                Ip::V6 { hop_by_hop, destination, routing } => {
                    40 + 8
                        * (usize::from(hop_by_hop)
                            + usize::from(destination)
                            + usize::from(routing))
                }
            }
    }

    pub fn end(&self) -> usize {
        self.l4_at() + if self.tcp { 20 + 4 * usize::from(self.tcp_options) } else { 8 }
    }

    pub fn csum_at(&self) -> usize {
        self.l4_at() + if self.tcp { 16 } else { 6 }
    }

    pub fn payload(&self) -> Vec<u8> {
        let mut state = u32::from(self.seed);
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..self.payload).map(|_| byte()).collect()
    }

    /// The frame, all checksums finished.
    pub fn frame(&self) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2(SRC, DST).ip(self.ip_headers());
        let mut frame = Vec::new();
        if self.tcp {
            builder.tcp_header(self.tcp_header()).write(&mut frame, &self.payload()).unwrap();
        } else {
            builder.udp(self.ports.0, self.ports.1).write(&mut frame, &self.payload()).unwrap();
        }
        for tci in self.tags.iter().rev() {
            let [hi, lo] = tci.to_be_bytes();
            frame.splice(12..12, [0x81, 0x00, hi, lo]);
        }
        frame
    }

    /// The frame as a guest with checksum offload hands it over: the field holds the pseudo
    /// header's sum.
    pub fn partial_frame(&self) -> Vec<u8> {
        let mut frame = self.frame();
        let pseudo = self.pseudo_sum(&frame);
        frame[self.csum_at()..][..2].copy_from_slice(&pseudo.to_be_bytes());
        frame
    }

    fn pseudo_sum(&self, frame: &[u8]) -> u16 {
        let proto = if self.tcp { 6 } else { 17 };
        let len = ((frame.len() - self.l4_at()) as u32).to_be_bytes();
        let pseudo = match self.ip {
            Ip::V4 { .. } => [&SRC_V4[..], &DST_V4, &len, &[0, 0, 0, proto]].concat(),
            Ip::V6 { .. } => [&SRC_V6[..], &DST_V6, &len, &[0, 0, 0, proto]].concat(),
        };
        simple_sum(&pseudo)
    }

    fn tcp_header(&self) -> TcpHeader {
        let mut tcp = TcpHeader::new(self.ports.0, self.ports.1, self.seq, 4096);
        tcp.set_options_raw(&vec![1; 4 * usize::from(self.tcp_options)]).unwrap();
        tcp.fin = self.flags & 0x01 != 0;
        tcp.psh = self.flags & 0x08 != 0;
        tcp.ack = self.flags & 0x10 != 0;
        tcp.ece = self.flags & 0x40 != 0;
        tcp.cwr = self.flags & 0x80 != 0;
        tcp
    }

    fn ip_headers(&self) -> IpHeaders {
        match self.ip {
            Ip::V4 { id, options } => {
                let mut ip = Ipv4Header::new(0, 64, IpNumber(0), SRC_V4, DST_V4).unwrap();
                ip.identification = id;
                ip.options = Ipv4Options::try_from(&vec![1; 4 * usize::from(options)][..]).unwrap();
                IpHeaders::Ipv4(ip, Default::default())
            }
            Ip::V6 { hop_by_hop, destination, routing } => {
                let ext = || Ipv6RawExtHeader::new_raw(IpNumber(0), &[0; 6]).unwrap();
                let ip = Ipv6Header {
                    source: SRC_V6,
                    destination: DST_V6,
                    hop_limit: 64,
                    ..Default::default()
                };
                let extensions = Ipv6Extensions {
                    hop_by_hop_options: hop_by_hop.then(ext),
                    destination_options: destination.then(ext),
                    routing: routing.then(|| Ipv6RoutingExtensions {
                        routing: ext(),
                        final_destination_options: None,
                    }),
                    fragment: None,
                    auth: None,
                };
                IpHeaders::Ipv6(ip, extensions)
            }
        }
    }
}

/// RFC 1071, word by word, not inverted.
pub fn simple_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn ips() -> impl Strategy<Value = Ip> {
    prop_oneof![
        2 => (any::<u16>(), prop_oneof![2 => Just(0u8), 1 => 0..=10u8]).prop_map(|(id, options)| Ip::V4 { id, options }),
        1 => Just(PLAIN_V6),
        1 => any::<[bool; 3]>().prop_map(|[hop_by_hop, destination, routing]| Ip::V6 { hop_by_hop, destination, routing }),
    ]
}

prop_compose! {
    /// Any recipe with up to `max_payload` bytes of payload.
    pub fn recipes(max_payload: usize)(
        tags in prop::collection::vec(any::<u16>(), 0..=2),
        ip in ips(),
        tcp: bool,
        tcp_options in 0..=10u8,
        ports: (u16, u16),
        seq: u32,
        flags: u8,
        payload in 0..=max_payload,
        seed: u8,
    ) -> Recipe {
        Recipe { tags, ip, tcp, tcp_options, ports, seq, flags, payload, seed }
    }
}
