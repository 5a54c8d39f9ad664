use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn table() -> VtepTable {
    let mut table = VtepTable::new(ip("10.0.0.1"));
    table.add_network(vni(100));
    table.add(vni(100), ip("10.0.0.2"), PortId(7)).unwrap();
    table.add(vni(200), ip("10.0.0.3"), PortId(8)).unwrap();
    table
}

#[test]
fn only_peers_of_a_network_get_into_it() {
    let table = table();
    assert_eq!(table.ingress(vni(100), ip("10.0.0.2")), Ok(PortId(7)));
    assert_eq!(table.ingress(vni(100), ip("10.0.0.3")), Err(Refusal::UnknownVtep));
    assert_eq!(table.ingress(vni(101), ip("10.0.0.2")), Err(Refusal::UnknownVni));
    assert_eq!(table.ingress(vni(100), ip("::ffff:10.0.0.2")), Err(Refusal::UnknownVtep));
    let head = vni(100).header();
    assert_eq!(table.admit(ip("10.0.0.2"), &head, 22), Ok(PortId(7)));
    assert_eq!(table.admit(ip("10.0.0.2"), &head, 21), Err(Refusal::Malformed));
    assert_eq!(table.admit(ip("10.0.0.2"), &[0; 8], 60), Err(Refusal::NoVni));
}

#[test]
fn a_peer_that_is_gone_is_unknown() {
    let mut table = table();
    assert_eq!(table.remove(vni(100), ip("10.0.0.2")), Some(PortId(7)));
    assert_eq!(table.remove(vni(100), ip("10.0.0.2")), None);
    assert_eq!(table.ingress(vni(100), ip("10.0.0.2")), Err(Refusal::UnknownVtep));
    table.add(vni(100), ip("10.0.0.2"), PortId(9)).unwrap();
    assert_eq!(table.ingress(vni(100), ip("10.0.0.2")), Ok(PortId(9)));
}

#[test]
fn addresses_that_are_no_peers_are_refused() {
    let mut table = table();
    let mut add = |text: &str| table.add(vni(100), ip(text), PortId(1)).unwrap_err();
    assert_eq!(add("10.0.0.1"), VtepError::Own(ip("10.0.0.1")));
    assert_eq!(add("fd00::1"), VtepError::Family(ip("fd00::1")));
    assert_eq!(add("10.0.0.2"), VtepError::Taken(ip("10.0.0.2")));
    for address in ["0.0.0.0", "224.0.0.1", "255.255.255.255"] {
        assert_eq!(add(address), VtepError::NotUnicast(ip(address)));
    }
}

#[test]
fn there_is_an_end_to_peers() {
    let mut table = VtepTable::new(ip("10.0.0.1"));
    for number in 0..MAX_VTEPS as u32 {
        table.add(vni(1), IpAddr::V4((0x0b00_0001 + number).into()), PortId(1)).unwrap();
    }
    assert_eq!(table.add(vni(1), ip("10.0.0.9"), PortId(1)), Err(VtepError::Full));
    table.remove(vni(1), ip("11.0.0.1")).unwrap();
    assert_eq!(table.add(vni(2), ip("10.0.0.9"), PortId(1)), Ok(()));
}

proptest! {
    #[test]
    fn nothing_but_the_header_of_a_peer_is_let_in(
        head in prop::collection::vec(any::<u8>(), 0..16), len in 0..200usize, number: u32, near: bool
    ) {
        let mut head = head;
        if near && head.len() >= 8 {
            head[..8].copy_from_slice(&vni(number % 300).header());
        }
        let found = table().admit(ip("10.0.0.2"), &head, len);
        let right = head.len() >= 8 && len >= 22 && head[0] & 8 != 0 && head[4..7] == [0, 0, 100];
        prop_assert_eq!(found.is_ok(), right);
    }
}
