use proptest::prelude::*;

use super::*;
use crate::parse;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const V4: [u8; 4] = [10, 0, 0, 1];

fn found(frame: &[u8]) -> Option<IpAddr> {
    owned(frame, &parse(frame).unwrap())
}

fn ethernet(ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &OWN, &ethertype, payload].concat()
}

fn arp(operation: u8, sender: [u8; 6], sender_ip: [u8; 4], target_ip: [u8; 4]) -> Vec<u8> {
    let message = [&[0, 1, 8, 0, 6, 4, 0, operation][..], &sender, &sender_ip, &[0; 6], &target_ip];
    ethernet([8, 6], &message.concat())
}

/// A message of neighbour discovery of this type, with a target, and an option with a link-layer
/// address.
fn discovery(kind: u8, hops: u8, source: &str, target: &str, link: Option<[u8; 6]>) -> Vec<u8> {
    let [source, target, to] =
        [source, target, "ff02::1"].map(|it| it.parse::<Ipv6Addr>().unwrap());
    let option = link.map(|mac| [&[2, 1][..], &mac].concat()).unwrap_or_default();
    let len = 24 + option.len() as u8;
    let fixed = [0x60, 0, 0, 0, 0, len, 58, hops];
    let addresses = [source.octets(), to.octets()].concat();
    let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &option].concat();
    ethernet([0x86, 0xdd], &[&fixed[..], &addresses, &message].concat())
}

#[test]
fn whoever_speaks_arp_says_its_address() {
    let address = Some(IpAddr::from(V4));
    assert_eq!(found(&arp(1, OWN, V4, [10, 0, 0, 9])), address, "a request");
    assert_eq!(found(&arp(2, OWN, V4, [10, 0, 0, 9])), address, "a reply");
    assert_eq!(found(&arp(1, OWN, V4, V4)), address, "gratuitous");
    assert_eq!(found(&arp(1, OWN, [0; 4], V4)), None, "a probe");
    assert_eq!(found(&arp(2, OTHER, V4, V4)), None, "of another station");
    assert_eq!(found(&arp(3, OWN, V4, V4)), None, "neither request nor reply");
}

#[test]
fn neighbours_say_the_address_that_they_solicit_from_or_advertise() {
    let address = |text: &str| Some(IpAddr::V6(text.parse().unwrap()));
    let solicits = |source, link| found(&discovery(135, 255, source, "fd00::9", link));
    assert_eq!(solicits("fd00::1", Some(OWN)), address("fd00::1"));
    assert_eq!(solicits("fd00::1", None), address("fd00::1"));
    assert_eq!(solicits("fd00::1", Some(OTHER)), None);
    assert_eq!(solicits("::", None), None, "it probes");
    let advertises = |source, link| found(&discovery(136, 255, source, "fd00::2", link));
    assert_eq!(advertises("fe80::1", Some(OWN)), address("fd00::2"));
    assert_eq!(advertises("fd00::1", Some(OTHER)), None);
    assert_eq!(found(&discovery(136, 64, "fd00::2", "fd00::2", Some(OWN))), None, "from afar");
    for kind in [128, 133, 134, 137] {
        assert_eq!(found(&discovery(kind, 255, "fd00::1", "fd00::2", None)), None, "{kind}");
    }
}

#[test]
fn what_no_station_has_for_itself_is_left_out() {
    for sender_ip in [[0, 1, 2, 3], [127, 0, 0, 1], [169, 254, 1, 1], [224, 0, 0, 1], [255; 4]] {
        assert_eq!(found(&arp(2, OWN, sender_ip, V4)), None, "{sender_ip:?}");
    }
    for target in ["::", "::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1"] {
        assert_eq!(found(&discovery(136, 255, "fd00::1", target, None)), None, "{target}");
    }
}

#[test]
fn only_frames_that_resolve_addresses_are_looked_at() {
    let resolves = |frame: &[u8]| parse(frame).unwrap().resolves_addresses();
    assert!(resolves(&arp(1, OWN, V4, V4)));
    assert!(resolves(&discovery(135, 255, "fd00::1", "fd00::2", None)));
    let mut udp = discovery(135, 255, "fd00::1", "fd00::2", None);
    udp[20] = 17;
    assert!(!resolves(&udp) && !resolves(&ethernet([0x80, 0x35], &[0; 46])));
}

proptest! {
    #[test]
    fn any_bytes_are_survived_and_say_nothing_special(
        ethertype in prop_oneof![Just([8u8, 6]), Just([0x86, 0xdd]), any::<[u8; 2]>()],
        payload in prop::collection::vec(any::<u8>(), 0..120),
        cut in 0usize..60,
    ) {
        let frame = ethernet(ethertype, &payload);
        let headers = parse(&frame).unwrap();
        for head in [&frame[..], &frame[..frame.len().saturating_sub(cut)]] {
            if let Some(address) = owned(head, &headers) {
                prop_assert!(!address.is_unspecified() && !address.is_multicast());
                prop_assert!(headers.resolves_addresses());
            }
        }
    }
}
