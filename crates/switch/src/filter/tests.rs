use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::filter::tuple::{ICMP, TCP, UDP};

const SYN: u8 = 0x02;
const FIN: u8 = 0x01;
const ACK: u8 = 0x10;

fn rules(rules: &[&str]) -> Arc<RuleSet> {
    let addresses = ["192.0.2.0/28".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    let groups = BTreeMap::from([("admins".to_owned(), Arc::new(AddressSet::new(&addresses)))]);
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    Arc::new(RuleSet::new(&[SecurityGroup { name: "g".into(), rules }], &groups).unwrap())
}

fn tuple(protocol: u8, source: &str, destination: &str) -> Tuple {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    Tuple::new(protocol, address(source), address(destination)).unwrap()
}

/// A filter, and the time.
struct Port {
    filter: Filter,
    now: u32,
}

impl Port {
    fn new(list: &[&str]) -> Port {
        Port { filter: Filter::new(rules(list)), now: 0 }
    }

    fn check(&mut self, direction: Direction, packet: Packet) -> Result<(), DropReason> {
        self.filter.check(direction, &packet, self.now).map(|_| ())
    }

    fn tcp(&mut self, direction: Direction, flags: u8, from: &str, to: &str) -> bool {
        let frame = tcp_frame(flags, from, to);
        let packet = Packet::parse(&frame, &frame::parse(&frame).unwrap()).unwrap();
        self.check(direction, packet).is_ok()
    }

    fn data(&mut self, direction: Direction, tuple: Tuple) -> bool {
        self.check(direction, Packet::Flow { tuple, event: Event::Data }).is_ok()
    }
}

/// An Ethernet frame with a packet of IP of this protocol.
fn ip_frame(protocol: u8, from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let [from, to] = [from, to].map(|text| text.parse::<std::net::IpAddr>().unwrap());
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    match (from, to) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + payload.len() as u16).to_be_bytes());
            frame.extend([0, 9, 0, 0, 64, protocol, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((payload.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => unreachable!("one family"),
    }
    frame.extend(payload);
    frame
}

fn ports(from: &str, to: &str) -> ([String; 2], Vec<u8>) {
    let [from, to] = [from, to].map(|text| text.parse::<SocketAddr>().unwrap());
    let ports = [from.port(), to.port()].into_iter().flat_map(u16::to_be_bytes).collect();
    ([from.ip().to_string(), to.ip().to_string()], ports)
}

fn tcp_frame(flags: u8, from: &str, to: &str) -> Vec<u8> {
    let ([from, to], mut segment) = ports(from, to);
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    ip_frame(TCP, &from, &to, &segment)
}

fn udp_frame(from: &str, to: &str) -> Vec<u8> {
    let ([from, to], mut datagram) = ports(from, to);
    datagram.extend([0, 8, 0, 0]);
    ip_frame(UDP, &from, &to, &datagram)
}

fn packet(frame: &[u8]) -> Packet {
    Packet::parse(frame, &frame::parse(frame).unwrap()).unwrap()
}

const GUEST: &str = "10.0.0.2:80";
const PEER: &str = "192.0.2.1:4000";

#[test]
fn a_connection_passes_in_both_directions_once_a_rule_let_it_in() {
    use Direction::{In, Out};
    let mut port = Port::new(&["in tcp 80 from group admins"]);
    assert!(!port.tcp(Out, ACK, GUEST, PEER), "nothing was opened");
    assert!(!port.tcp(In, SYN, "192.0.2.16:1", GUEST), "not in the group");
    assert!(!port.tcp(In, SYN, PEER, "10.0.0.2:81"), "another port");
    assert!(!port.tcp(Out, SYN, "10.0.0.2:4000", "192.0.2.1:80"), "another direction");
    assert!(port.tcp(In, SYN, PEER, GUEST));
    assert!(port.tcp(Out, SYN | ACK, GUEST, PEER));
    assert!(port.tcp(In, ACK, PEER, GUEST) && port.tcp(Out, ACK, GUEST, PEER));
    assert!(!port.tcp(Out, ACK, GUEST, "192.0.2.1:4001"), "another connection");
    assert_eq!(port.filter.connections(), 1);
}

#[test]
fn silent_connections_are_forgotten_after_the_time_of_their_state() {
    use Direction::{In, Out};
    let mut port = Port::new(&["in tcp 80"]);
    assert!(port.tcp(In, SYN, PEER, GUEST));
    port.now = 59;
    assert!(port.tcp(Out, SYN | ACK, GUEST, PEER), "opening");
    port.now += 7439;
    assert!(port.tcp(Out, ACK, GUEST, PEER), "open");
    port.now += 7440;
    assert!(!port.tcp(Out, ACK, GUEST, PEER), "silent for too long");
    // A side has ended it.
    assert!(port.tcp(In, SYN, PEER, GUEST) && port.tcp(Out, ACK, GUEST, PEER));
    assert!(port.tcp(In, FIN | ACK, PEER, GUEST) && port.tcp(Out, ACK, GUEST, PEER));
    port.now += 60;
    assert!(!port.tcp(Out, ACK, GUEST, PEER));
    // The ports are used again.
    assert!(port.tcp(In, SYN, PEER, GUEST) && port.tcp(Out, FIN, GUEST, PEER));
    assert!(port.tcp(In, SYN, PEER, GUEST) && port.tcp(Out, SYN | ACK, GUEST, PEER));
    port.now += 7000;
    assert!(port.tcp(Out, ACK, GUEST, PEER));
}

#[test]
fn a_datagram_may_be_answered_and_an_echo_too() {
    use Direction::{In, Out};
    let mut port = Port::new(&["out udp 53", "in icmp"]);
    let query = tuple(UDP, "10.0.0.2:5000", "192.0.2.1:53");
    assert!(!port.data(In, query.reversed()));
    assert!(port.data(Out, query) && port.data(In, query.reversed()));
    port.now += 179;
    assert!(port.data(In, query.reversed()));
    port.now += 180;
    assert!(!port.data(In, query.reversed()));

    let echo = |kind, from, to| ip_frame(ICMP, from, to, &[kind, 0, 0, 0, 7, 7, 0, 1]);
    let reply = packet(&echo(0, "10.0.0.2", "192.0.2.1"));
    assert!(port.check(Out, reply).is_err());
    assert!(port.check(In, packet(&echo(8, "192.0.2.1", "10.0.0.2"))).is_ok());
    assert!(port.check(Out, reply).is_ok());
}

#[test]
fn an_error_passes_if_it_is_about_a_connection() {
    use Direction::{In, Out};
    let mut port = Port::new(&["out udp 53"]);
    let sent = udp_frame("10.0.0.2:5000", "192.0.2.1:53");
    let error = |about: &[u8]| {
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend(&about[14..]);
        packet(&ip_frame(ICMP, "192.0.2.254", "10.0.0.2", &message))
    };
    assert!(port.check(In, error(&sent)).is_err(), "nothing was sent");
    assert!(port.check(Out, packet(&sent)).is_ok());
    assert!(port.check(In, error(&sent)).is_ok());
    assert!(port.check(In, error(&udp_frame("10.0.0.2:5001", "192.0.2.1:53"))).is_err());
    assert!(port.check(In, error(&sent[..14 + 20])).is_err(), "ports are missing");

    let sent = udp_frame("[2001:db8::2]:5000", "[2001:db8::1]:53");
    let mut message = vec![2, 0, 0, 0, 0, 0, 5, 0];
    message.extend(&sent[14..]);
    let too_big = packet(&ip_frame(ICMPV6, "2001:db8::fe", "2001:db8::2", &message));
    assert!(port.check(In, too_big).is_err());
    assert!(port.check(Out, packet(&sent)).is_ok() && port.check(In, too_big).is_ok());
}

use crate::filter::tuple::ICMPV6;

#[test]
fn connections_survive_rules_that_still_allow_them() {
    use Direction::{In, Out};
    let mut port = Port::new(&["in tcp 80", "in udp"]);
    let datagram = tuple(UDP, "192.0.2.1:1", "10.0.0.2:2");
    assert!(port.tcp(In, SYN, PEER, GUEST) && port.tcp(Out, SYN | ACK, GUEST, PEER));
    assert!(port.data(In, datagram) && port.data(Out, datagram.reversed()));
    port.filter.set_rules(rules(&["in tcp 80 from group admins"]));
    // No rule would allow the reply by itself.
    assert!(port.tcp(Out, ACK, GUEST, PEER));
    assert!(!port.data(Out, datagram.reversed()) && !port.data(In, datagram));
    assert_eq!(port.filter.connections(), 1);
    port.filter.set_rules(rules(&[]));
    assert!(!port.tcp(In, ACK, PEER, GUEST));
    assert_eq!(port.filter.connections(), 0);
}

#[test]
fn fragments_pass_behind_a_first_one_that_passed() {
    use Direction::In;
    let mut port = Port::new(&["in udp 53"]);
    let fragment = |to: &str, offset: u16, more: bool| {
        let mut frame = udp_frame("192.0.2.1:9", to);
        let flags = ((u16::from(more) << 13) | (offset / 8)).to_be_bytes();
        frame[20..22].copy_from_slice(&flags);
        Packet::parse(&frame, &frame::parse(&frame).unwrap())
    };
    let later = fragment("10.0.0.2:53", 1480, false).unwrap();
    assert_eq!(port.check(In, later), Err(DropReason::NotAllowed));
    assert!(port.check(In, fragment("10.0.0.2:54", 0, true).unwrap()).is_err());
    assert!(port.check(In, fragment("10.0.0.2:53", 0, true).unwrap()).is_ok());
    assert!(port.check(In, later).is_ok());
    assert_eq!(fragment("10.0.0.2:53", 8, true), Err(DropReason::Untrackable), "over the ports");
    port.now += 30;
    assert!(port.check(In, later).is_err());
}

#[test]
fn what_configures_a_guest_passes_and_its_counterpart_does_not() {
    use Direction::{In, Out};
    let mut port = Port::new(&[]);
    let arp = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6][..], &[0; 28]].concat();
    assert!(port.check(Out, packet(&arp)).is_ok() && port.check(In, packet(&arp)).is_ok());
    let request = tuple(UDP, "0.0.0.0:68", "255.255.255.255:67");
    let offer = tuple(UDP, "10.0.0.1:67", "255.255.255.255:68");
    assert!(port.data(Out, request) && port.data(In, offer));
    assert!(!port.data(In, request) && !port.data(Out, offer));
    let solicit = tuple(UDP, "[fe80::2]:546", "[ff02::1:2]:547");
    assert!(port.data(Out, solicit) && !port.data(In, solicit));
    let icmp = |kind| packet(&ip_frame(ICMPV6, "fe80::1", "ff02::1", &[kind, 0, 0, 0, 0, 0, 0, 0]));
    assert!(port.check(In, icmp(134)).is_ok() && port.check(Out, icmp(134)).is_err());
    assert!(port.check(Out, icmp(135)).is_ok() && port.check(In, icmp(136)).is_ok());
    assert_eq!(port.check(In, icmp(128)), Err(DropReason::NotAllowed));
    let other = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xcc][..], &[0; 46]].concat();
    assert_eq!(port.check(Out, packet(&other)), Err(DropReason::NotAllowed));
    assert_eq!(port.filter.connections(), 0);
}

#[test]
fn headers_that_hide_ports_are_refused() {
    let parse = |frame: &[u8]| Packet::parse(frame, &frame::parse(frame).unwrap());
    let hidden = tcp_frame(SYN, PEER, GUEST);
    assert_eq!(parse(&hidden[..40]), Err(DropReason::Untrackable), "ends within the header");
    let mut options = tcp_frame(SYN, PEER, GUEST);
    options[14] = 0x4f; // A header of 60 bytes, which is not complete.
    assert_eq!(parse(&options), Err(DropReason::Untrackable));
    let extension = ip_frame(0, "2001:db8::1", "2001:db8::2", &[6, 255, 0, 0, 0, 0, 0, 0]);
    assert_eq!(parse(&extension), Err(DropReason::Untrackable));
    let mapped = ip_frame(TCP, "::ffff:192.0.2.1", "2001:db8::2", &[0; 20]);
    assert_eq!(parse(&mapped), Err(DropReason::Untrackable));
}

#[test]
fn a_full_table_forgets_what_nobody_answered_and_keeps_what_is_in_use() {
    use Direction::{In, Out};
    let mut port = Port::new(&["in udp"]);
    port.filter.connections = Connections::new(100);
    let datagram = |from: u32| tuple(UDP, &format!("192.0.2.1:{from}"), "10.0.0.2:2");
    for from in 1..=60 {
        assert!(port.data(In, datagram(from)) && port.data(Out, datagram(from).reversed()));
    }
    // A flood of new ones.
    assert!((1000..2000).all(|from| port.data(In, datagram(from))));
    assert_eq!(port.filter.connections(), 100);
    assert!((1..=60).all(|from| port.data(Out, datagram(from).reversed())));
    assert!(
        !port.data(Out, datagram(1001).reversed()) && port.data(Out, datagram(1999).reversed())
    );
    for from in 1960..2000 {
        assert!(port.data(Out, datagram(from).reversed()), "{from}");
    }
    let full = port.check(In, Packet::Flow { tuple: datagram(3000), event: Event::Data });
    assert_eq!(full, Err(DropReason::ConnectionsFull));
}

#[test]
fn a_rule_that_names_no_group_is_refused() {
    let rules = vec!["in tcp from group nobody".parse().unwrap()];
    let error = RuleSet::new(&[SecurityGroup { name: "g".into(), rules }], &BTreeMap::new());
    assert_eq!(error.unwrap_err().to_string(), "there is no address group \"nobody\"");
}

proptest! {
    #[test]
    fn no_frame_breaks_the_reader(bytes in prop::collection::vec(any::<u8>(), 14..160), kind in 0..4) {
        let mut bytes = bytes;
        let start: &[u8] = [&[8u8, 0, 0x45][..], &[0x86, 0xdd, 0x60], &[8, 6, 0], &[]][kind as usize];
        let end = bytes.len().min(12 + start.len());
        bytes[12..end].copy_from_slice(&start[..end - 12]);
        let headers = frame::parse(&bytes).unwrap();
        let _ = Packet::parse(&bytes[..bytes.len().min(frame::HEAD_LEN)], &headers);
    }

    /// Compares the table with a model: a list that is searched.
    #[test]
    fn connections_are_those_of_a_simple_model(
        steps in prop::collection::vec((0u16..12, any::<bool>(), 0u32..40), 1..200),
    ) {
        use Direction::{In, Out};
        let mut port = Port::new(&["in udp"]);
        let mut model: BTreeMap<u16, (u32, bool)> = BTreeMap::new();
        for (from, is_reply, pause) in steps {
            port.now += pause;
            let now = port.now;
            // The table forgets a few at a time.
            (0..12).for_each(|_| port.filter.connections.expire(now));
            model.retain(|_, (last, is_open)| now < *last + if *is_open { 180 } else { 30 });
            let tuple = tuple(UDP, &format!("192.0.2.1:{}", from + 1), "10.0.0.2:2");
            let passed = if is_reply { port.data(Out, tuple.reversed()) } else { port.data(In, tuple) };
            let known = model.get(&from).copied();
            prop_assert_eq!(passed, !is_reply || known.is_some());
            if passed {
                let was_open = known.is_some_and(|(_, is_open)| is_open);
                model.insert(from, (now, was_open || is_reply));
            }
            prop_assert_eq!(port.filter.connections(), model.len());
        }
    }
}
