//! Mirrors: which frames are copied where, and that a mirror is no part of the switch.

use frame::{Headers, Mac, TagEdit};
use switch::{
    Decision, DropReason, Limits, Mirrors, PortId, PortRule, Switch, Target, Verdict, Vlan,
};

const A: PortId = PortId(1);
const B: PortId = PortId(2);
const C: PortId = PortId(3);
const M: PortId = PortId(4);

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

fn headers(dst: Mac, src: Mac) -> Headers {
    let mut bytes = [&dst.0[..], &src.0, &[0x88, 0xb5]].concat();
    bytes.resize(60, 0);
    frame::parse(&bytes).unwrap()
}

/// Ports A, B and C with stations 1 to 3, and M.
fn switch(rules: [PortRule; 4]) -> Switch {
    let mut switch = Switch::new(Limits::default());
    for (port, rule) in [A, B, C, M].into_iter().zip(rules) {
        switch.add_port(port, rule).unwrap();
    }
    for (station, port) in [(1, A), (2, B), (3, C)] {
        switch.decide(0, port, &headers(Mac([0xff; 6]), mac(station)));
    }
    switch
}

fn flat(of: &[(PortId, PortId)]) -> Switch {
    let mut switch = switch(Default::default());
    switch.set_mirrors(mirrors(of));
    switch
}

fn mirrors(of: &[(PortId, PortId)]) -> Mirrors {
    Mirrors { of: of.iter().copied().collect(), ports: of.iter().map(|(_, port)| *port).collect() }
}

fn ask(switch: &mut Switch, ingress: PortId, dst: Mac, src: Mac) -> (Decision, Vec<Target>) {
    let Verdict { decision, mirrors, .. } = switch.decide(0, ingress, &headers(dst, src));
    (decision, mirrors.map(|mirrors| mirrors.to_vec()).unwrap_or_default())
}

fn keep(port: PortId) -> Target {
    Target { port, tag: TagEdit::Keep }
}

#[test]
fn frames_of_both_directions_are_copied_and_no_others() {
    let mut switch = flat(&[(A, M)]);
    let copy = vec![keep(M)];
    assert_eq!(ask(&mut switch, A, mac(2), mac(1)), (Decision::To(keep(B)), copy.clone()));
    assert_eq!(ask(&mut switch, B, mac(1), mac(2)), (Decision::To(keep(A)), copy.clone()));
    assert_eq!(ask(&mut switch, B, mac(3), mac(2)), (Decision::To(keep(C)), vec![]));
    let (flood, copies) = ask(&mut switch, B, Mac([0xff; 6]), mac(2));
    assert_eq!((flood, copies), (Decision::Flood([keep(A), keep(C)].into()), copy));
}

#[test]
fn a_frame_is_copied_once_to_each_mirror() {
    let mut switch = flat(&[(A, M), (B, M)]);
    assert_eq!(ask(&mut switch, A, mac(2), mac(1)).1, [keep(M)]);
    switch.set_mirrors(mirrors(&[(A, M), (B, C)]));
    assert_eq!(ask(&mut switch, A, mac(2), mac(1)).1, [keep(M), keep(C)]);
}

#[test]
fn what_has_no_receiver_is_copied_and_what_was_not_let_in_is_not() {
    let mut switch = flat(&[(A, M)]);
    let (decision, copies) = ask(&mut switch, A, mac(1), mac(9));
    assert_eq!((decision, copies), (Decision::Drop(DropReason::Reflection), vec![keep(M)]));
    let (decision, copies) = ask(&mut switch, A, mac(2), Mac([1; 6]));
    assert_eq!((decision, copies), (Decision::Drop(DropReason::BadSource), vec![]));
}

#[test]
fn a_mirror_is_no_part_of_the_switch() {
    let mut switch = switch(Default::default());
    // Known before it was a mirror, and locked to an address.
    switch.decide(0, M, &headers(mac(1), mac(8)));
    switch.lock_source(M, mac(7)).unwrap();
    switch.set_mirrors(mirrors(&[(A, M)]));
    let dropped = |reason| Decision::Drop(reason);
    assert_eq!(ask(&mut switch, M, mac(1), mac(7)), (dropped(DropReason::MirrorPort), vec![]));
    assert_eq!(ask(&mut switch, B, mac(7), mac(2)).0, dropped(DropReason::NoReceiver));
    let flood = Decision::Flood([keep(A), keep(C)].into());
    assert_eq!(ask(&mut switch, B, mac(8), mac(2)).0, flood);
    // And it is one again when it is no mirror any more.
    switch.set_mirrors(Mirrors::default());
    assert_eq!(ask(&mut switch, B, mac(7), mac(2)), (Decision::To(keep(M)), vec![]));
    assert_eq!(ask(&mut switch, M, mac(1), mac(7)).0, Decision::To(keep(A)));
}

#[test]
fn copies_have_the_tag_that_the_port_sees() {
    let rule = |vlan| PortRule { vlan, mac: None };
    let trunk = || rule(Vlan::Trunk(vec![10]));
    let access = || rule(Vlan::Access(10));
    let mut switch = switch([access(), trunk(), access(), rule(Vlan::None)]);
    let decide = |switch: &mut Switch, of: &[(PortId, PortId)]| {
        switch.set_mirrors(mirrors(of));
        // Out of an access port, for one that is not known: to the trunk with a tag.
        ask(switch, C, mac(99), mac(3)).1
    };
    let tagged = Target { port: M, tag: TagEdit::Push(10) };
    assert_eq!(decide(&mut switch, &[(B, M)]), [tagged]);
    assert_eq!(decide(&mut switch, &[(A, M)]), [keep(M)]);
    assert_eq!(decide(&mut switch, &[(C, M), (B, M)]), [keep(M)]);
}

#[test]
fn changes_are_seen_by_whoever_kept_a_verdict() {
    let mut switch = flat(&[]);
    let verdict = switch.decide(0, A, &headers(mac(2), mac(1)));
    switch.set_mirrors(mirrors(&[(B, M)]));
    assert!(!switch.generations().holds(&verdict.stamp));
    let verdict = switch.decide(0, A, &headers(mac(2), mac(1)));
    assert!(verdict.mirrors.is_some() && switch.generations().holds(&verdict.stamp));
    // A port that is gone is no mirror, even if another gets its number.
    switch.remove_port(M);
    switch.add_port(M, PortRule::default()).unwrap();
    assert!(!switch.generations().holds(&verdict.stamp));
    assert_eq!(ask(&mut switch, A, mac(2), mac(1)), (Decision::To(keep(B)), vec![]));
    let all = Decision::Flood([keep(B), keep(C), keep(M)].into());
    assert_eq!(ask(&mut switch, A, Mac([0xff; 6]), mac(1)), (all, vec![]));
}
