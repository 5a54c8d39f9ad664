mod model;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proptest::prelude::*;

use frame::TagEdit;

use super::*;
use crate::vlan::Vlan;

const A: PortId = PortId(1);
const B: PortId = PortId(2);
const C: PortId = PortId(3);
const ALL: Mac = Mac([0xff; 6]);

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

/// Headers of a frame, made by the datapath's parser. `tag` is (TPID, TCI).
fn headers(dst: Mac, src: Mac, tag: Option<(u16, u16)>) -> Headers {
    let mut bytes = [dst.0, src.0].concat();
    if let Some((tpid, tci)) = tag {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend(tci.to_be_bytes());
    }
    bytes.extend([0x88, 0xb5]);
    bytes.resize(60, 0);
    frame::parse(&bytes).unwrap()
}

fn plain(dst: Mac, src: Mac) -> Headers {
    headers(dst, src, None)
}

fn tagged(dst: Mac, src: Mac, tci: u16) -> Headers {
    headers(dst, src, Some((0x8100, tci)))
}

fn rule(vlan: Vlan) -> PortRule {
    PortRule { vlan, mac: None }
}

fn locked(mac: Mac) -> PortRule {
    PortRule { vlan: Vlan::None, mac: Some(mac) }
}

fn switch(rules: impl IntoIterator<Item = (PortId, PortRule)>) -> Switch {
    let mut switch = Switch::new(Limits::default());
    for (port, rule) in rules {
        switch.add_port(port, rule).unwrap();
    }
    switch
}

fn flat() -> Switch {
    switch([A, B, C].map(|port| (port, PortRule::default())))
}

fn to(port: PortId, tag: TagEdit) -> Decision {
    Decision::To(Target { port, tag })
}

fn flood(targets: &[(PortId, TagEdit)]) -> Decision {
    Decision::Flood(targets.iter().map(|(port, tag)| Target { port: *port, tag: *tag }).collect())
}

fn dropped(reason: DropReason) -> Decision {
    Decision::Drop(reason)
}

fn ask(switch: &mut Switch, ingress: PortId, headers: &Headers) -> Decision {
    switch.decide(0, ingress, headers).decision
}

#[test]
fn floods_the_unknown_and_goes_straight_to_the_known() {
    let mut s = flat();
    assert_eq!(
        ask(&mut s, A, &plain(mac(2), mac(1))),
        flood(&[(B, TagEdit::Keep), (C, TagEdit::Keep)])
    );
    assert_eq!(ask(&mut s, B, &plain(mac(1), mac(2))), to(A, TagEdit::Keep));
    assert_eq!(ask(&mut s, A, &plain(mac(2), mac(1))), to(B, TagEdit::Keep));
    assert_eq!(
        ask(&mut s, A, &plain(ALL, mac(1))),
        flood(&[(B, TagEdit::Keep), (C, TagEdit::Keep)])
    );
    let group = Mac([1, 0, 0x5e, 0, 0, 1]);
    assert_eq!(
        ask(&mut s, C, &plain(group, mac(3))),
        flood(&[(A, TagEdit::Keep), (B, TagEdit::Keep)])
    );
}

#[test]
fn floods_alike_share_one_list() {
    let mut s = flat();
    let mut list = |src| match ask(&mut s, A, &plain(ALL, mac(src))) {
        Decision::Flood(list) => list,
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(&list(1), &list(2)));
}

#[test]
fn never_sends_a_frame_back() {
    let mut s = flat();
    ask(&mut s, A, &plain(ALL, mac(1)));
    ask(&mut s, A, &plain(ALL, mac(2)));
    assert_eq!(ask(&mut s, A, &plain(mac(2), mac(1))), dropped(DropReason::Reflection));
    assert_eq!(ask(&mut s, A, &plain(mac(1), mac(1))), dropped(DropReason::Reflection));
}

#[test]
fn refuses_what_no_station_sends() {
    let mut s = flat();
    for src in [ALL, Mac([1, 2, 3, 4, 5, 6]), Mac([0; 6])] {
        assert_eq!(ask(&mut s, A, &plain(mac(2), src)), dropped(DropReason::BadSource));
    }
    for last in 0..16 {
        let reserved = Mac([1, 0x80, 0xc2, 0, 0, last]);
        assert_eq!(ask(&mut s, A, &plain(reserved, mac(1))), dropped(DropReason::LinkLocal));
    }
    assert!(s.table(0).is_empty(), "nothing is learned from refused frames");
    assert_eq!(ask(&mut s, PortId(9), &plain(mac(2), mac(1))), dropped(DropReason::NoPort));
}

#[test]
fn a_lone_port_has_no_receiver() {
    let mut s = switch([(A, PortRule::default()), (B, rule(Vlan::Access(10)))]);
    assert_eq!(ask(&mut s, A, &plain(ALL, mac(1))), dropped(DropReason::NoReceiver));
    assert_eq!(ask(&mut s, B, &plain(ALL, mac(2))), dropped(DropReason::NoReceiver));
}

#[test]
fn stations_move_at_once() {
    let mut s = flat();
    ask(&mut s, A, &plain(ALL, mac(1)));
    let before = s.decide(0, C, &plain(mac(1), mac(3)));
    assert_eq!(before.decision, to(A, TagEdit::Keep));
    ask(&mut s, B, &plain(ALL, mac(1)));
    assert!(!s.generations().holds(&before.stamp));
    assert_eq!(ask(&mut s, C, &plain(mac(1), mac(3))), to(B, TagEdit::Keep));
}

#[test]
fn the_first_verdict_of_a_new_station_holds() {
    let mut s = flat();
    let verdict = s.decide(0, A, &plain(mac(2), mac(1)));
    assert!(
        s.generations().holds(&verdict.stamp),
        "learning its own source must not void a verdict"
    );
}

#[test]
fn silence_ages_a_station_out_and_asking_keeps_it() {
    let mut s = flat();
    s.decide(0, A, &plain(ALL, mac(1)));
    s.decide(0, B, &plain(ALL, mac(2)));
    let to_first = s.decide(200, B, &plain(mac(1), mac(2)));
    assert_eq!(s.age(301), 1);
    assert!(!s.generations().holds(&to_first.stamp));
    assert_eq!(
        s.decide(301, B, &plain(mac(1), mac(2))).decision,
        flood(&[(A, TagEdit::Keep), (C, TagEdit::Keep)])
    );
    assert_eq!(s.decide(301, A, &plain(mac(2), mac(1))).decision, to(B, TagEdit::Keep));
}

#[test]
fn a_locked_port_lets_one_address_in_and_nobody_else_may_use_it() {
    let mut s = switch([(A, locked(mac(1))), (B, PortRule::default()), (C, PortRule::default())]);
    assert_eq!(
        ask(&mut s, B, &plain(mac(1), mac(2))),
        to(A, TagEdit::Keep),
        "known before it ever spoke"
    );
    assert_eq!(ask(&mut s, A, &plain(mac(2), mac(1))), to(B, TagEdit::Keep));
    assert_eq!(ask(&mut s, A, &plain(mac(2), mac(9))), dropped(DropReason::SourceLocked));
    assert_eq!(ask(&mut s, B, &plain(mac(2), mac(1))), dropped(DropReason::SourceTaken));
    s.age(u32::MAX);
    assert_eq!(
        ask(&mut s, B, &plain(mac(1), mac(2))),
        to(A, TagEdit::Keep),
        "locked addresses do not age"
    );
}

#[test]
fn a_lock_takes_an_address_that_was_learned_elsewhere() {
    let mut s = switch([(A, PortRule::default()), (B, PortRule::default())]);
    ask(&mut s, A, &plain(ALL, mac(3)));
    s.add_port(C, locked(mac(3))).unwrap();
    assert_eq!(ask(&mut s, B, &plain(mac(3), mac(2))), to(C, TagEdit::Keep));
    s.remove_port(C);
    assert_eq!(ask(&mut s, B, &plain(mac(3), mac(2))), flood(&[(A, TagEdit::Keep)]));
}

#[test]
fn rules_that_cannot_be() {
    let mut s = switch([(A, locked(mac(1)))]);
    let add =
        |s: &mut Switch, port, vlan, mac| s.add_port(port, PortRule { vlan, mac }).unwrap_err();
    assert_eq!(add(&mut s, A, Vlan::None, None), RuleError::Exists(A));
    assert_eq!(add(&mut s, B, Vlan::None, Some(mac(1))), RuleError::Taken { mac: mac(1), port: A });
    assert_eq!(add(&mut s, B, Vlan::None, Some(ALL)), RuleError::Mac(ALL));
    assert_eq!(add(&mut s, B, Vlan::Access(4095), None), RuleError::Vlan(4095));
    assert_eq!(add(&mut s, B, Vlan::Trunk(vec![10, 0]), None), RuleError::Vlan(0));
    assert_eq!(s.set_rule(B, PortRule::default()), Err(RuleError::Unknown(B)));
    assert!(!s.remove_port(B));
    // The same address in another VLAN is another station, and a port may keep its own address
    // under a new rule.
    s.add_port(B, PortRule { vlan: Vlan::Access(10), mac: Some(mac(1)) }).unwrap();
    s.set_rule(A, PortRule { vlan: Vlan::Access(20), mac: Some(mac(1)) }).unwrap();
    assert_eq!(
        s.set_rule(A, PortRule { vlan: Vlan::Trunk(vec![20, 10]), mac: Some(mac(1)) }),
        Err(RuleError::Taken { mac: mac(1), port: B })
    );
}

#[test]
fn vlans_are_apart_and_tags_are_put_right() {
    let (trunk, narrow) = (PortId(4), PortId(5));
    let mut s = switch([
        (A, rule(Vlan::Access(10))),
        (B, rule(Vlan::Access(10))),
        (C, rule(Vlan::Access(20))),
        (trunk, rule(Vlan::Trunk(vec![20, 10]))),
        (narrow, rule(Vlan::Trunk(vec![20]))),
        (PortId(6), PortRule::default()),
    ]);
    assert_eq!(
        ask(&mut s, A, &plain(ALL, mac(1))),
        flood(&[(B, TagEdit::Keep), (trunk, TagEdit::Push(10))])
    );
    assert_eq!(
        ask(&mut s, A, &tagged(ALL, mac(1), 0xa000)),
        flood(&[(B, TagEdit::Pop), (trunk, TagEdit::Replace(0xa00a))])
    );
    assert_eq!(ask(&mut s, trunk, &tagged(mac(1), mac(4), 0x600a)), to(A, TagEdit::Pop));
    assert_eq!(
        ask(&mut s, trunk, &tagged(mac(1), mac(4), 0x6014)),
        flood(&[(C, TagEdit::Pop), (narrow, TagEdit::Keep)])
    );
    assert_eq!(ask(&mut s, narrow, &tagged(mac(4), mac(5), 0x4014)), to(trunk, TagEdit::Keep));
    assert_eq!(
        ask(&mut s, narrow, &tagged(mac(4), mac(5), 10)),
        dropped(DropReason::VlanNotAllowed)
    );
    assert_eq!(ask(&mut s, A, &tagged(mac(4), mac(1), 20)), dropped(DropReason::TaggedOnAccess));
    assert_eq!(ask(&mut s, trunk, &plain(mac(1), mac(4))), dropped(DropReason::UntaggedOnTrunk));
}

#[test]
fn a_service_tag_is_payload() {
    let trunk = PortId(4);
    let mut s = switch([
        (A, rule(Vlan::Access(10))),
        (B, rule(Vlan::Access(10))),
        (trunk, rule(Vlan::Trunk(vec![10]))),
    ]);
    let service = headers(ALL, mac(1), Some((0x88a8, 10)));
    assert_eq!(ask(&mut s, A, &service), flood(&[(B, TagEdit::Keep), (trunk, TagEdit::Push(10))]));
    assert_eq!(ask(&mut s, trunk, &service), dropped(DropReason::UntaggedOnTrunk));
}

#[test]
fn without_a_vlan_rule_tags_are_payload() {
    let mut s =
        switch([(A, PortRule::default()), (B, PortRule::default()), (C, rule(Vlan::Access(10)))]);
    assert_eq!(ask(&mut s, A, &tagged(ALL, mac(1), 10)), flood(&[(B, TagEdit::Keep)]));
    assert_eq!(ask(&mut s, B, &tagged(mac(1), mac(2), 77)), to(A, TagEdit::Keep));
}

#[test]
fn flood_lists_stay_bounded() {
    let vids: Vec<u16> = (1..=4094).collect();
    let trunks = (0..4).map(|port| (PortId(port), rule(Vlan::Trunk(vids.clone()))));
    let mut s = switch(trunks);
    for port in 0..4 {
        for vid in &vids {
            ask(&mut s, PortId(port), &tagged(ALL, mac(1), *vid));
        }
    }
    assert!(s.floods.len() <= FLOOD_LISTS);
}

#[test]
fn a_source_flood_is_bounded_and_spares_other_flows() {
    let mut s = flat();
    ask(&mut s, B, &plain(ALL, mac(2)));
    let kept = s.decide(0, B, &plain(ALL, mac(2)));
    let from = |n: u32| {
        let [_, b, c, d] = n.to_be_bytes();
        Mac([0x0a, 0, 0, b, c, d])
    };
    for n in 0..100_000 {
        ask(&mut s, A, &plain(mac(2), from(n)));
    }
    let limits = Limits::default();
    assert_eq!(s.table(0).len(), limits.per_port + 1);
    let late = s.decide(0, B, &plain(ALL, mac(2)));
    for n in 100_000..200_000 {
        ask(&mut s, A, &plain(mac(2), from(n)));
    }
    assert!(s.generations().holds(&late.stamp), "a flood that finds no room changes nothing");
    assert_eq!(late.decision, kept.decision);
}

#[test]
fn the_table_lists_locked_and_learned() {
    let mut s = switch([(A, locked(mac(1))), (B, PortRule::default())]);
    s.decide(10, B, &plain(mac(1), mac(2)));
    let rows = s.table(15);
    let station = |last| Station { network: Network::UNTAGGED, mac: mac(last) };
    assert_eq!(
        rows,
        [
            Row { station: station(1), port: A, idle: None },
            Row { station: station(2), port: B, idle: Some(5) },
        ]
    );
}
