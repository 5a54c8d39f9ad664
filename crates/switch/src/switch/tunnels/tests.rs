use frame::{Headers, Mac, TagEdit};

use super::*;
use crate::mac::Limits;
use crate::port_rule::PortRule;
use crate::reason::DropReason;
use crate::tunnel::SENT_ON;
use crate::verdict::{Decision, Target};
use crate::vlan::{Network, Vlan};

const GUEST: PortId = PortId(1);
const OTHER: PortId = PortId(2);
const ENDS: [PortId; 3] = [PortId(10), PortId(11), PortId(12)];
const LEARNING: Tunnel = Tunnel { group: 1, learns: true, floods: true };

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

fn station(last: u8) -> Station {
    Station { network: Network::UNTAGGED, mac: mac(last) }
}

fn frame(dst: Mac, src: Mac) -> Headers {
    Headers { dst, src, ..Headers::default() }
}

/// Two guests, and three ends of tunnels.
fn switch(tunnel: Tunnel) -> Switch {
    let mut switch = Switch::new(Limits::default());
    for port in [GUEST, OTHER].into_iter().chain(ENDS) {
        switch.add_port(port, PortRule::default()).unwrap();
    }
    ENDS.into_iter().for_each(|port| switch.set_tunnel(port, tunnel));
    switch
}

fn ports(decision: Decision) -> Result<Vec<PortId>, DropReason> {
    match decision {
        Decision::Drop(reason) => Err(reason),
        Decision::To(target) => Ok(vec![target.port]),
        Decision::Flood(targets) => Ok(targets.iter().map(|target| target.port).collect()),
    }
}

fn decide(
    switch: &mut Switch,
    port: PortId,
    dst: Mac,
    src: Mac,
) -> Result<Vec<PortId>, DropReason> {
    ports(switch.decide(0, port, &frame(dst, src)).decision)
}

#[test]
fn a_flood_has_a_copy_for_each_end_and_comes_back_to_none() {
    let mut s = switch(LEARNING);
    let everyone = [OTHER].into_iter().chain(ENDS).collect::<Vec<_>>();
    assert_eq!(decide(&mut s, GUEST, Mac::BROADCAST, mac(1)), Ok(everyone));
    assert_eq!(decide(&mut s, ENDS[0], Mac::BROADCAST, mac(7)), Ok(vec![GUEST, OTHER]));
    // Another group, such as that of another fabric, is not split from this one.
    s.set_tunnel(ENDS[2], Tunnel { group: 2, ..LEARNING });
    assert_eq!(decide(&mut s, ENDS[0], Mac::BROADCAST, mac(7)), Ok(vec![GUEST, OTHER, ENDS[2]]));
    // One that is not in the flood list is still reached by name.
    s.set_tunnel(ENDS[2], Tunnel { floods: false, ..LEARNING });
    s.pin(station(9), ENDS[2], PinKind::Sticky).unwrap();
    assert_eq!(decide(&mut s, GUEST, Mac::BROADCAST, mac(1)), Ok(vec![OTHER, ENDS[0], ENDS[1]]));
    assert_eq!(decide(&mut s, GUEST, mac(9), mac(1)), Ok(vec![ENDS[2]]));
}

#[test]
fn nothing_goes_from_one_tunnel_into_another() {
    let mut s = switch(LEARNING);
    decide(&mut s, ENDS[0], Mac::BROADCAST, mac(7)).unwrap();
    assert_eq!(decide(&mut s, GUEST, mac(7), mac(1)), Ok(vec![ENDS[0]]));
    assert_eq!(decide(&mut s, ENDS[1], mac(7), mac(8)), Err(DropReason::SplitHorizon));
    // The station has moved there.
    decide(&mut s, ENDS[1], mac(1), mac(7)).unwrap();
    assert_eq!(decide(&mut s, GUEST, mac(7), mac(1)), Ok(vec![ENDS[1]]));
}

#[test]
fn a_tunnel_that_does_not_learn_knows_what_is_pinned() {
    let mut s = switch(Tunnel { learns: false, ..LEARNING });
    decide(&mut s, ENDS[0], Mac::BROADCAST, mac(7)).unwrap();
    assert_eq!(decide(&mut s, GUEST, mac(7), mac(1)).unwrap().len(), 4, "not learned");
    let before = s.decide(0, GUEST, &frame(mac(7), mac(1))).stamp;
    s.pin(station(7), ENDS[1], PinKind::Sticky).unwrap();
    assert!(!s.generations().holds(&before), "caches hear of it at once");
    assert_eq!(decide(&mut s, GUEST, mac(7), mac(1)), Ok(vec![ENDS[1]]));
    // A port that merely claims the address does not get its frames.
    decide(&mut s, OTHER, Mac::BROADCAST, mac(7)).unwrap();
    assert_eq!(decide(&mut s, GUEST, mac(7), mac(1)), Ok(vec![ENDS[1]]));
    let row = s.table(0).into_iter().find(|row| row.station == station(7)).unwrap();
    assert_eq!((row.port, row.idle), (ENDS[1], None));
    assert!(s.unpin(station(7)) && !s.unpin(station(7)));
    assert_eq!(decide(&mut s, GUEST, mac(7), mac(1)).unwrap().len(), 4);
}

#[test]
fn a_locked_address_is_not_to_be_had_through_a_tunnel() {
    let mut s = switch(LEARNING);
    s.lock_source(GUEST, mac(1)).unwrap();
    assert_eq!(decide(&mut s, ENDS[0], Mac::BROADCAST, mac(1)), Err(DropReason::SourceTaken));
    s.pin(station(1), ENDS[0], PinKind::Sticky).unwrap();
    assert_eq!(decide(&mut s, OTHER, mac(1), mac(2)), Ok(vec![GUEST]));
}

#[test]
fn frames_for_a_station_that_has_just_left_are_sent_on_but_never_back() {
    let mut s = switch(Tunnel { learns: false, ..LEARNING });
    decide(&mut s, GUEST, Mac::BROADCAST, mac(7)).unwrap();
    s.pin(station(7), ENDS[1], PinKind::Learned).unwrap();
    // A station that was never here has not left.
    s.pin(station(8), ENDS[1], PinKind::Learned).unwrap();
    assert_eq!(decide(&mut s, ENDS[0], mac(7), mac(9)), Ok(vec![ENDS[1]]));
    assert_eq!(decide(&mut s, ENDS[0], mac(8), mac(9)), Err(DropReason::SplitHorizon));
    assert_eq!(decide(&mut s, ENDS[1], mac(7), mac(9)), Err(DropReason::Reflection));
    s.age(10);
    s.age(10 + SENT_ON - 1);
    let stamp = s.decide(0, ENDS[0], &frame(mac(7), mac(9))).stamp;
    assert_eq!(decide(&mut s, ENDS[0], mac(7), mac(9)), Ok(vec![ENDS[1]]));
    s.age(10 + SENT_ON);
    assert!(!s.generations().holds(&stamp), "caches hear of it at once");
    assert_eq!(decide(&mut s, ENDS[0], mac(7), mac(9)), Err(DropReason::SplitHorizon));
    // The station comes back, and is here again.
    decide(&mut s, GUEST, Mac::BROADCAST, mac(7)).unwrap();
    assert_eq!(decide(&mut s, ENDS[0], mac(7), mac(9)), Ok(vec![GUEST]));
}

#[test]
fn pins_are_refused_where_they_are_impossible_and_go_with_their_port() {
    let mut s = switch(LEARNING);
    assert_eq!(
        s.pin(Station { mac: Mac::BROADCAST, ..station(1) }, GUEST, PinKind::Sticky),
        Err(PinError::Mac(Mac::BROADCAST))
    );
    assert_eq!(s.pin(station(1), PortId(99), PinKind::Sticky), Err(PinError::Port(PortId(99))));
    let vlan = Station { network: Network::vlan(5).unwrap(), mac: mac(1) };
    assert_eq!(s.pin(vlan, ENDS[0], PinKind::Sticky), Err(PinError::Port(ENDS[0])));
    s.pin(station(1), ENDS[0], PinKind::Sticky).unwrap();
    s.remove_port(ENDS[0]);
    assert!(s.table(0).is_empty() && !s.unpin(station(1)));
    // The port number is given to a guest, and is no tunnel any more.
    s.add_port(ENDS[0], PortRule { vlan: Vlan::None, mac: None }).unwrap();
    assert_eq!(
        s.decide(0, ENDS[1], &frame(Mac::BROADCAST, mac(7))).decision,
        Decision::Flood(
            [GUEST, OTHER, ENDS[0]].map(|port| Target { port, tag: TagEdit::Keep }).into()
        )
    );
}
