//! Ports with security groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::peer::{Peer, port, udp, wait};
use frame::Accepts;
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use network::port_filter::PortFilter;
use network::restrictions::{Limits, Restrictions};
use network::token_bucket::{Rate, TokenBucket, Unit};
use switch::filter::{RuleSet, SecurityGroup};
use switch::{PortId, PortRule};

/// Three ports, each with a queue on each worker. The address of port `n` is 10.0.0.n; all frames
/// go to UDP port 9.
struct Site {
    fabric: Fabric,
    ports: [PortId; 3],
    peers: Vec<Vec<Peer>>,
}

fn restricted(rules: &[&str]) -> Restrictions {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let group = SecurityGroup { name: "g".into(), rules };
    let rules = Arc::new(RuleSet::new(&[group], &BTreeMap::new()).unwrap());
    Restrictions { filter: Some(Arc::new(PortFilter::new(rules))), ..Restrictions::default() }
}

impl Site {
    fn new(workers: usize, room: usize) -> Site {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let ports = [0, 1, 2].map(|_| port(&fabric, PortRule::default()).0);
        let attach = |port| {
            let queue = |index| Peer::attach(&fabric, port, index, Accepts::ALL, room);
            (0..workers as u16).map(queue).collect()
        };
        let peers: Vec<Vec<Peer>> = ports.iter().map(|port| attach(*port)).collect();
        Site { fabric, ports, peers }
    }

    fn restrict(&self, port: usize, restrictions: Restrictions) {
        self.fabric.set_restrictions(self.ports[port], restrictions);
    }

    fn count(&self, port: usize) -> (u64, u64) {
        let counters = self.fabric.counters(self.ports[port]);
        let sum = |of: fn(&network::count::QueueCounters) -> u64| {
            counters.iter().map(|queue| of(queue)).sum()
        };
        (sum(|queue| queue.rx.frames.get()), sum(|queue| queue.tx.frames.get()))
    }

    fn dropped(&self, port: usize, reason: DropReason) -> u64 {
        let counters = self.fabric.counters(self.ports[port]);
        counters.iter().map(|queue| queue.dropped(reason)).sum()
    }
}

/// A datagram from UDP port 9 to `flow`: the answer to one of [`udp`].
fn answer(dst: u8, src: u8, flow: u16, number: u32) -> Vec<u8> {
    let mut frame = udp(dst, src, flow, number, 100);
    let (from, to): ([u8; 2], [u8; 2]) =
        (frame[34..36].try_into().unwrap(), frame[36..38].try_into().unwrap());
    frame[34..36].copy_from_slice(&to);
    frame[36..38].copy_from_slice(&from);
    frame
}

#[test]
fn a_receiver_gets_what_its_rules_allow_and_answers_pass_on_any_queue() {
    for workers in [1, 2] {
        let site = Site::new(workers, usize::MAX);
        // The switch learns where the ports are.
        for port in 0..3 {
            site.peers[port][0].send([udp(9, port as u8, 0, 0, 100)]);
        }
        // Each was flooded to the two others.
        wait(|| site.count(0).0 + site.count(1).0 + site.count(2).0 == 6);
        site.restrict(1, restricted(&["in udp 9 from 10.0.0.0"]));
        let before = site.count(1).0;
        let refused = site.dropped(1, DropReason::NotAllowed);
        for (flow, queue) in (0..).zip(&site.peers[0]) {
            queue.send((0..100).map(|number| udp(1, 0, flow, number, 100)));
        }
        site.peers[2][0].send((0..50).map(|number| udp(1, 2, 0, number, 100)));
        let workers = workers as u64;
        wait(|| site.count(1).0 == before + 100 * workers);
        wait(|| site.dropped(1, DropReason::NotAllowed) == refused + 50);
        // Answers leave from another queue than the one that got the question.
        let before = site.count(0).0;
        for (flow, queue) in (0..).zip(site.peers[1].iter().rev()) {
            queue.send((0..100).map(|number| answer(0, 1, flow, number)));
            queue.send((0..100).map(|number| answer(0, 1, 77, number)));
        }
        wait(|| site.count(0).0 == before + 100 * workers);
        wait(|| site.dropped(1, DropReason::NotAllowed) == refused + 50 + 100 * workers);
        assert_eq!(site.fabric.filter(site.ports[1]).unwrap().connections() as u64, workers);
    }
}

#[test]
fn what_a_port_may_not_send_teaches_the_switch_no_address() {
    let site = Site::new(1, usize::MAX);
    site.restrict(0, restricted(&["out tcp"]));
    site.peers[0][0].send((0..10).map(|number| udp(1, 0, 0, number, 100)));
    wait(|| site.dropped(0, DropReason::NotAllowed) == 10);
    assert!(site.fabric.table().is_empty());
    assert_eq!((site.count(1).0, site.count(2).0), (0, 0));
}

#[test]
fn rules_change_in_service_and_connections_that_they_allow_go_on() {
    let site = Site::new(1, usize::MAX);
    site.restrict(1, restricted(&["in udp"]));
    let send = |n| site.peers[0][0].send((0..n).map(|number| udp(1, 0, 5, number, 100)));
    let reply = |n| site.peers[1][0].send((0..n).map(|number| answer(0, 1, 5, number)));
    send(10);
    wait(|| site.count(1).0 == 10);
    site.restrict(1, restricted(&["in udp 9"]));
    reply(10);
    wait(|| site.count(0).0 == 10);
    site.restrict(1, restricted(&["in tcp"]));
    send(10);
    reply(10);
    wait(|| site.dropped(1, DropReason::NotAllowed) == 20);
    // Without a security group, everything passes.
    site.restrict(1, Restrictions::default());
    send(10);
    wait(|| site.count(1).0 == 20);
}

#[test]
fn a_filtered_receiver_that_is_full_makes_its_sender_wait() {
    let site = Site::new(1, 10);
    site.restrict(1, restricted(&["in udp 9 from 10.0.0.0"]));
    site.peers[0][0].send([udp(1, 0, 0, 0, 100)]);
    site.peers[1][0].send([answer(0, 1, 0, 0)]);
    wait(|| site.count(0).0 + site.count(1).0 >= 2);
    // Frames of a stranger between those of the sender, all from one port.
    let mixed = |number: u32| {
        let mut frame = udp(1, 0, 0, number, 100);
        frame[29] = if number.is_multiple_of(3) { 7 } else { 0 };
        frame
    };
    let (allowed, refused) = (site.count(1).0, site.dropped(1, DropReason::NotAllowed));
    site.peers[0][0].send((0..60).map(mixed));
    // The receiver posts buffers one by one.
    let mut posted = 0;
    wait(|| {
        site.peers[1][0].post(1);
        posted += 1;
        let counted = |reason| site.dropped(1, reason);
        let lost = counted(DropReason::RxFull) + counted(DropReason::HeadOfLine);
        site.count(1).0 - allowed + lost == 40 && counted(DropReason::NotAllowed) - refused == 20
    });
    assert!(posted > 0);
}

#[test]
fn limits_hold_for_what_passes_the_filter() {
    let site = Site::new(1, usize::MAX);
    let bucket = TokenBucket::new(Unit::Items, Rate { per_second: 1, burst: 5 });
    let receive = Limits(vec![Arc::new(bucket)]);
    site.restrict(1, Restrictions { receive, ..restricted(&["in udp 9 from 10.0.0.0"]) });
    let mixed = |number: u32| {
        let mut frame = udp(1, 0, 0, number, 100);
        frame[29] = if number < 20 { 7 } else { 0 };
        frame
    };
    site.peers[0][0].send((0..30).map(mixed));
    wait(|| site.dropped(1, DropReason::RxRate) == 5);
    assert_eq!((site.count(1).0, site.dropped(1, DropReason::NotAllowed)), (5, 20));
}
