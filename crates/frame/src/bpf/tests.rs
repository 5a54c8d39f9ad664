use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Programs that `tcpdump -ddd` has made, each behind its expression.
const PROGRAMS: &str = include_str!("programs.txt");

fn programs() -> BTreeMap<&'static str, Vec<Instruction>> {
    let mut programs = BTreeMap::new();
    for program in PROGRAMS.split("# ").skip(1) {
        let mut lines = program.lines();
        let expression = lines.next().unwrap();
        programs.insert(expression, lines.map(instruction).collect());
    }
    programs
}

fn instruction(line: &str) -> Instruction {
    let words: Vec<u32> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let [code, jt, jf, k] = words[..] else { panic!("{line}") };
    Instruction { code: code as u16, jt: jt as u8, jf: jf as u8, k }
}

/// The properties of a frame.
#[derive(Clone, Debug)]
struct Sample {
    vlan: Option<u16>,
    network: Network,
    transport: Transport,
    ports: [u16; 2],
    syn: bool,
    options: bool,
    hosts: [u8; 2],
    payload: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Network {
    Arp,
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Transport {
    Tcp,
    Udp,
    Icmp,
}

fn samples() -> impl Strategy<Value = Sample> {
    let network =
        prop_oneof![Just(Network::Arp), Just(Network::V4), Just(Network::V4), Just(Network::V6)];
    let transport = prop_oneof![Just(Transport::Tcp), Just(Transport::Udp), Just(Transport::Icmp)];
    let port = || prop_oneof![Just(80u16), Just(53), Just(60), Just(52), Just(81), any::<u16>()];
    let vlan = prop_oneof![Just(None), Just(None), Just(Some(7)), Just(Some(8))];
    let flags = (any::<bool>(), any::<bool>());
    let hosts = [0u8..4, 0..4];
    (vlan, network, transport, [port(), port()], flags, hosts, 0usize..120).prop_map(
        |(vlan, network, transport, ports, (syn, options), hosts, payload)| Sample {
            vlan,
            network,
            transport,
            ports,
            syn,
            options,
            hosts,
            payload,
        },
    )
}

impl Sample {
    fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, self.hosts[1], 2, 0, 0, 0, 0, self.hosts[0]];
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0, (vlan >> 8) as u8, vlan as u8]);
        }
        let [from, to] = self.hosts;
        match self.network {
            Network::Arp => {
                frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, from, 10, 0, 0, from]);
                frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, to]);
            }
            Network::V4 => {
                let words = if self.options { 6 } else { 5 };
                frame.extend([8, 0, 0x40 | words, 0, 0, 0, 0, 0, 0, 0, 64, self.protocol(), 0, 0]);
                frame.extend([10, 0, 0, from, 10, 0, 0, to]);
                frame.extend(vec![1; usize::from(words - 5) * 4]);
                self.transport(&mut frame);
            }
            Network::V6 => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, self.protocol(), 64]);
                frame.extend([[0xfd; 15].as_slice(), &[from], &[0xfd; 15], &[to]].concat());
                self.transport(&mut frame);
            }
        }
        frame.extend(vec![0; self.payload]);
        frame
    }

    fn protocol(&self) -> u8 {
        match (self.transport, self.network) {
            (Transport::Tcp, _) => 6,
            (Transport::Udp, _) => 17,
            (Transport::Icmp, Network::V6) => 58,
            (Transport::Icmp, _) => 1,
        }
    }

    fn transport(&self, frame: &mut Vec<u8>) {
        let ports = self.ports.map(u16::to_be_bytes).concat();
        match self.transport {
            Transport::Tcp => {
                let flags = if self.syn { 2 } else { 16 };
                frame.extend(ports);
                frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 1, 0, 0, 0, 0]);
            }
            Transport::Udp => {
                frame.extend(ports);
                frame.extend([0, 8, 0, 0]);
            }
            Transport::Icmp => frame.extend([8, 0, 0, 0, 0, 1, 0, 1]),
        }
    }

    fn is(&self, network: Network) -> bool {
        self.vlan.is_none() && self.network == network
    }

    fn is_ip(&self) -> bool {
        self.is(Network::V4) || self.is(Network::V6)
    }

    fn has_port(&self, matches: impl Fn(u16) -> bool) -> bool {
        self.transport != Transport::Icmp && self.ports.iter().any(|port| matches(*port))
    }

    /// Whether an expression means this frame.
    fn matches(&self, expression: &str, bytes: &[u8]) -> bool {
        let v4 = self.is(Network::V4);
        let is = |transport| self.is_ip() && self.transport == transport;
        let v4_or_arp = v4 || self.is(Network::Arp);
        match expression {
            "icmp" => v4 && self.transport == Transport::Icmp,
            "arp" => self.is(Network::Arp),
            "ip6" => self.is(Network::V6),
            "tcp port 80" => is(Transport::Tcp) && self.has_port(|port| port == 80),
            "udp and not port 53" => is(Transport::Udp) && !self.has_port(|port| port == 53),
            "host 10.0.0.1" => v4_or_arp && self.hosts.contains(&1),
            "net 10.0.0.0/24 and greater 100" => v4_or_arp && bytes.len() >= 100,
            "portrange 53-80" => self.is_ip() && self.has_port(|port| (53..=80).contains(&port)),
            "tcp[tcpflags] & tcp-syn != 0" => v4 && self.transport == Transport::Tcp && self.syn,
            "ip[0] & 0xf > 5" => v4 && self.options,
            "vlan 7" => self.vlan == Some(7),
            "len % 3 = 1 and ether[0] * 2 - 3 > ether[5] / 2" => {
                bytes.len() % 3 == 1 && u32::from(bytes[0]) * 2 - 3 > u32::from(bytes[5]) / 2
            }
            other => panic!("{other}"),
        }
    }
}

fn run(program: &[Instruction], packet: &[u8]) -> u32 {
    Filter::new(program).unwrap().run(&mut { packet })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn programs_of_tcpdump_pick_what_their_expressions_mean(sample in samples()) {
        let bytes = sample.bytes();
        for (expression, program) in programs() {
            let wanted = run(&program, &bytes) != 0;
            prop_assert_eq!(wanted, sample.matches(expression, &bytes), "{}", expression);
        }
    }

    #[test]
    fn programs_of_tcpdump_end_on_any_packet(packet in vec(any::<u8>(), 0..200)) {
        for program in programs().values() {
            prop_assert!([0, 262_144].contains(&run(program, &packet)));
        }
    }

    /// A program that was not refused ends, and stays within the packet.
    #[test]
    fn any_program_is_refused_or_ends(
        program in vec(instructions(), 1..60),
        packet in vec(any::<u8>(), 0..100),
    ) {
        if let Ok(filter) = Filter::new(&program) {
            filter.run(&mut &packet[..]);
        }
    }
}

/// Instructions that are often valid.
fn instructions() -> impl Strategy<Value = Instruction> {
    let known: Vec<u16> = (0..0x100).filter(|code| decode(0, &of(*code, 1)).is_ok()).collect();
    let code = prop_oneof![9 => prop::sample::select(known), 1 => any::<u16>()];
    let jump = || prop_oneof![9 => 0u8..4, 1 => any::<u8>()];
    let k = prop_oneof![9 => 0u32..20, 1 => any::<u32>()];
    (code, jump(), jump(), k).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })
}

fn of(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

const RETURN: Instruction = Instruction { code: 0x06, jt: 0, jf: 0, k: 1 };

#[test]
fn what_the_kernel_refuses_is_refused() {
    let refused = |program: &[Instruction]| Filter::new(program).unwrap_err();
    assert_eq!(refused(&[]), BadFilter::Empty);
    assert_eq!(refused(&vec![RETURN; MAX_INSTRUCTIONS + 1]), BadFilter::TooLong);
    assert!(Filter::new(&vec![RETURN; MAX_INSTRUCTIONS]).is_ok());
    assert_eq!(refused(&[of(0xffff, 0), RETURN]), BadFilter::Unknown(0));
    assert_eq!(refused(&[of(0x0e, 0), RETURN]), BadFilter::Unknown(0), "no return of the index");
    assert_eq!(refused(&[of(0x20, 0)]), BadFilter::NoReturn);
    for word in [0x60, 0x61, 0x02, 0x03] {
        assert!(Filter::new(&[of(word, 15), RETURN]).is_ok());
        for k in [16, 256, u32::MAX] {
            assert_eq!(refused(&[of(word, k), RETURN]), BadFilter::Memory(0));
        }
    }
    for code in [0x34, 0x94] {
        assert_eq!(refused(&[of(code, 0), RETURN]), BadFilter::Division(0));
        assert!(Filter::new(&[of(code | BY_INDEX, 0), RETURN]).is_ok());
    }
    for code in [0x64, 0x74] {
        assert_eq!(refused(&[of(code, 32), RETURN]), BadFilter::Shift(0));
    }
    let branch = |jt, jf| Instruction { code: 0x15, jt, jf, k: 0 };
    assert!(Filter::new(&[branch(0, 1), RETURN, RETURN]).is_ok());
    for (jt, jf) in [(2, 0), (0, 2), (255, 0)] {
        assert_eq!(refused(&[branch(jt, jf), RETURN, RETURN]), BadFilter::Jump(0));
    }
    assert!(Filter::new(&[of(0x05, 1), RETURN, RETURN]).is_ok());
    for k in [2, 65_536, u32::MAX] {
        assert_eq!(refused(&[of(0x05, k), RETURN, RETURN]), BadFilter::Jump(0));
    }
}

#[test]
fn what_cannot_be_computed_matches_nothing() {
    let ends = |program: &[Instruction]| run(&[program, &[RETURN]].concat(), &[1, 2, 3, 4]);
    assert_eq!(ends(&[of(0x20, 0)]), 1);
    for code in [0x20, 0x28, 0x30, 0xb1] {
        for k in [4, 0x7fff_ffff, 0xffff_f000, u32::MAX] {
            assert_eq!(ends(&[of(code, k)]), 0, "load {code:#x} of {k:#x}");
        }
    }
    // The sum of index and constant wraps to an offset that exists.
    assert_eq!(ends(&[of(0x01, 2), of(0x50, u32::MAX - 1)]), 0);
    assert_eq!(ends(&[of(0x01, 2), of(0x50, 1)]), 1);
    assert_eq!(ends(&[of(0x3c, 0)]), 0, "division by an index of zero");
    assert_eq!(ends(&[of(0x9c, 0)]), 0, "remainder of the same");
}

#[test]
fn each_instruction_computes_what_it_says() {
    let packet = [0x45, 2, 3, 4, 5, 6, 7, 8];
    // A becomes 20, X becomes 3, and then `code` with `k`.
    let result = |code: u16, k: u32| {
        let program = [of(0x00, 20), of(0x01, 3), of(code, k), of(0x16, 0)];
        run(&program, &packet)
    };
    let cases = [
        (0x04, 7, 27),
        (0x0c, 7, 23),
        (0x14, 21, u32::MAX),
        (0x24, 3, 60),
        (0x34, 6, 3),
        (0x94, 6, 2),
        (0x9c, 6, 2),
        (0x44, 3, 23),
        (0x54, 6, 4),
        (0xa4, 7, 19),
        (0x64, 2, 80),
        (0x7c, 0, 2),
        (0x84, 0, 20u32.wrapping_neg()),
        (0x87, 0, 3),
        (0x20, 4, 0x0506_0708),
        (0x28, 4, 0x0506),
        (0x50, 1, 5),
        (0x48, 1, 0x0506),
        (0x80, 0, 8),
        (0x60, 4, 0),
    ];
    for (code, k, want) in cases {
        assert_eq!(result(code, k), want, "{code:#x}");
    }
    let moved = |program: &[Instruction]| run(&[program, &[of(0x16, 0)]].concat(), &packet);
    assert_eq!(moved(&[of(0xb1, 0), of(0x87, 0)]), 20, "the length of a header");
    assert_eq!(moved(&[of(0x81, 0), of(0x87, 0)]), 8);
    assert_eq!(moved(&[of(0x00, 9), of(0x02, 3), of(0x00, 0), of(0x60, 3)]), 9);
    assert_eq!(moved(&[of(0x00, 9), of(0x07, 0), of(0x03, 3), of(0x60, 3)]), 9);
    assert_eq!(moved(&[of(0x00, 1), of(0x01, 40), of(0x6c, 0)]), 0, "a shift by too many bits");
    assert_eq!(moved(&[of(0x01, 6), of(0x03, 1), of(0x61, 1), of(0x87, 0)]), 6);
}
