//! Negotiation with frontends of all kinds, and frontends that are refused.

mod refusals;

use crate::front::netfront::Netfront;
use crate::front::tcp::{at, is_right, tcp, tcp6};
use crate::front::{CSUM_BLANK, Front, FrontSpec, Host, Received, frame, introduce, wait, what};
use hypervisor::DomId;
use xen::netif::status::Condition;

/// One frame of each kind from a sender with all offloads. The receiver gets the offloads that it
/// has negotiated; the others are done in software.
#[test]
fn each_feature_on_and_off() {
    let host = Host::new();
    let a = Front::connected(&host, 1, FrontSpec::default());
    for bits in 0..32u8 {
        let [sg, v4, v6, no_csum, csum6] = [1, 2, 4, 8, 16].map(|bit| bits & bit != 0);
        let flag = |on: bool| if on { "1" } else { "0" };
        let keys = vec![
            ("feature-sg", flag(sg)),
            ("feature-gso-tcpv4", flag(v4)),
            ("feature-gso-tcpv6", flag(v6)),
            ("feature-no-csum-offload", flag(no_csum)),
            ("feature-ipv6-csum-offload", flag(csum6)),
        ];
        let (domain, split) = (10 + u16::from(bits), bits & 3 == 0);
        let b = Front::connected(&host, domain, FrontSpec { keys, split, ..FrontSpec::default() });
        let y = domain as u8;
        introduce((&a, 1), (&b, y));
        for (kind, make) in [(1, tcp as fn(u8, u8, usize) -> Vec<u8>), (2, tcp6)] {
            let big = make(1, y, 20_000);
            a.queues[0].send(&big, CSUM_BLANK, Some((kind, 1400)));
            a.queues[0].send(&make(1, y, 900), CSUM_BLANK, None);
            let (gso, csum) = if kind == 1 { (v4, !no_csum) } else { (v6, csum6) };
            let payload = |got: &Received| got.frame[at(&got.frame) + 20..].to_vec();
            let mut bytes = Vec::new();
            wait(|| {
                for got in b.received() {
                    assert!(sg || got.frame.len() <= 4096, "{bits}: {} bytes", got.frame.len());
                    assert!(!got.blank || csum, "{bits}: a blank checksum");
                    assert!(got.blank || is_right(&got.frame), "{bits}: a wrong checksum");
                    assert!(
                        got.gso.is_none_or(|(is, size)| gso && is == kind && size == 1400),
                        "{bits}"
                    );
                    assert!(
                        got.gso.is_some() || got.frame.len() <= at(&big) + 20 + 1400,
                        "{bits}: not cut"
                    );
                    bytes.push(payload(&got));
                }
                bytes.concat().len() >= 20_900
            });
            let (last, first) = bytes.split_last().unwrap();
            assert_eq!(first.concat(), big[at(&big) + 20..], "{bits}");
            assert_eq!(*last, make(1, y, 900)[at(&big) + 20..]);
            let whole = gso && sg && !no_csum && csum6;
            assert_eq!(first.len(), if whole { 1 } else { 20_000usize.div_ceil(1400) }, "{bits}");
        }
        // Without scatter-gather, what is longer than a page is not for it.
        a.send(&frame(1, y, 9000, 5));
        a.send(&frame(1, y, 60, 6));
        let got: Vec<u32> =
            b.expect(1 + usize::from(sg)).iter().map(|got| what(&got.frame)).collect();
        assert_eq!(got, if sg { vec![5, 6] } else { vec![6] });
    }
    assert_eq!(host.machine.refusals(), []);
}

/// Queues and channels in any number, with a control ring or without.
#[test]
fn any_number_of_queues_and_channels() {
    let host = Host::new();
    let a = Front::connected(&host, 1, FrontSpec::default());
    let mut domain = 2;
    for queues in [1, 2, 3, 4] {
        for (split, control) in [(false, false), (false, true), (true, false), (true, true)] {
            let b = Front::connected(
                &host,
                domain,
                FrontSpec { queues, split, control, ..FrontSpec::default() },
            );
            introduce((&a, 1), (&b, domain as u8));
            // Each of its queues sends.
            for (n, queue) in (0..).zip(&b.queues) {
                queue.send(&frame(domain as u8, 1, 700, n), 0, None);
                assert_eq!(what(&a.expect(1)[0].frame), n);
            }
            let status = host.vif(&b).unwrap();
            assert_eq!((status.queues, status.condition), (queues as usize, Condition::Connected));
            if let Some(control_ring) = &b.control_ring {
                assert_eq!(control_ring.ask(4, [0; 3]), (0, 128));
            }
            domain += 1;
        }
    }
    let taken = host.vif(&a).unwrap().features.names();
    assert_eq!(taken, ["sg", "gso-tcpv4", "gso-tcpv6", "csum", "ipv6-csum", "rx-notify"]);
}

#[test]
fn features_are_in_the_store_before_the_state_changes() {
    let host = Host::new();
    let a = Front::attached(&host, 1, FrontSpec::default());
    wait(|| a.back_state() == Some(2));
    let offered = [
        ("feature-rx-copy", "1"),
        ("feature-rx-flip", "0"),
        ("feature-sg", "1"),
        ("feature-gso-tcpv4", "1"),
        ("feature-gso-tcpv6", "1"),
        ("feature-ipv6-csum-offload", "1"),
        ("feature-multicast-control", "1"),
        ("feature-dynamic-multicast-control", "1"),
        ("feature-split-event-channels", "1"),
        ("feature-ctrl-ring", "1"),
        ("multi-queue-max-queues", "4"),
    ];
    for (key, value) in offered {
        assert_eq!(a.back_key(key).as_deref(), Some(value), "{key}");
    }
}

#[test]
fn a_limit_of_queues_from_the_script_reaches_a_guest_that_has_not_read_the_offer() {
    let mut host = Host::new();
    // Attached as the toolstack does it: the script runs when the offer stands.
    let mut late = Front::attached(&host, 1, FrontSpec { queues: 2, ..FrontSpec::default() });
    wait(|| late.back_state() == Some(2));
    late.put_back("ringmain/queues", 2);
    wait(|| late.back_key("multi-queue-max-queues").as_deref() == Some("2"));
    late.connect();
    wait(|| host.connected(&late));

    // One that had looked before connects all the same, and stays connected.
    let mut early = Front::attached(&host, 2, FrontSpec { queues: 4, ..FrontSpec::default() });
    wait(|| early.back_state() == Some(2));
    early.put_back("ringmain/queues", 2);
    wait(|| early.back_key("multi-queue-max-queues").as_deref() == Some("2"));
    early.connect();
    wait(|| host.connected(&early));
    host.restart();
    wait(|| host.connected(&early) && host.connected(&late));
    assert_eq!(host.vif(&early).unwrap().queues, 4);

    // The next time it gets what the script says, from the start.
    early.begin_anew();
    wait(|| early.back_key("ringmain/first-offer").is_none());
    assert_eq!(early.back_key("multi-queue-max-queues").as_deref(), Some("2"));
}

/// A guest that crashed, or was restarted by kexec, begins in the first state without closing.
#[test]
fn a_frontend_may_skip_states() {
    let host = Host::new();
    let (mut a, b) = (
        Front::connected(&host, 1, FrontSpec { queues: 2, ..FrontSpec::default() }),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    introduce((&a, 1), (&b, 2));
    for (round, way) in
        [&[1][..], &[6, 1], &[5, 1], &[2, 1], &[0, 1], &[6, 5, 1], &[3, 4, 6, 1], &[1, 1, 1]]
            .iter()
            .enumerate()
    {
        b.queues[0].queue(&frame(2, 1, 3000, 9), 0, None);
        b.queues[0].push_tx();
        for state in *way {
            a.put("state", state);
        }
        wait(|| a.back_state() == Some(2));
        assert_eq!(a.guest.mapped(), 0);
        if round % 2 == 0 {
            a.make();
            // "Initialised" says nothing yet.
            a.put("state", 3);
            a.put("state", 4);
        } else {
            a.connect();
        }
        wait(|| host.connected(&a));
        assert_eq!(host.vif(&a).unwrap().violations, 0, "{way:?}");
        introduce((&a, 1), (&b, 2));
    }
}

/// States in any order, and invalid ones. Afterwards a frontend can always connect.
#[test]
fn a_backend_survives_states_in_any_order() {
    let host = Host::new();
    let (mut a, b, c) = (
        Front::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
        Netfront::connected(&host, 4, FrontSpec::default()),
    );
    introduce((&b, 2), (&c, 4));
    let states = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "99", "", "four", "-1"];
    let mut seed = 1u64;
    for _ in 0..20 {
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            a.put("state", states[(seed >> 33) as usize % states.len()]);
            if seed >> 60 == 0 {
                std::thread::yield_now();
            }
        }
        a.put("state", 6);
        wait(|| a.back_state() == Some(6));
        a.put("state", 1);
        a.connect();
        wait(|| host.connected(&a));
        introduce((&a, 1), (&b, 2));
    }
    introduce((&b, 2), (&c, 4));
}

#[test]
fn a_vif_that_the_toolstack_removes_stays_closed() {
    let host = Host::new();
    let a = Front::connected(&host, 1, FrontSpec::default());
    a.device(|device| host.machine.detach(device)).unwrap();
    assert_eq!((a.back_key("online").as_deref(), a.back_state()), (Some("0"), Some(5)));
    a.put("state", 5);
    a.put("state", 6);
    wait(|| a.back_state() == Some(6));
    assert_eq!(a.guest.mapped(), 0);
    // The vif does not come back by itself.
    a.put("state", 1);
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    assert!(host.connected(&b));
    assert_eq!(a.back_state(), Some(6));
}

/// The toolstack removes both directories by force, without closing the connection first.
#[test]
fn directories_are_removed_under_traffic() {
    let host = Host::new();
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    let nodes = host.machine.hypervisor(DomId(0)).store;
    for (domain, backend_first) in [(5, true), (6, false)] {
        let a = Front::connected(&host, domain, FrontSpec { queues: 2, ..FrontSpec::default() });
        introduce((&a, 5), (&b, 2));
        for n in 0..50 {
            a.queues[1].queue(&frame(5, 2, 2000, n), 0, None);
        }
        a.queues[1].push_tx();
        let (front, back) = a.device(|device| (device.frontend_path(), device.backend_path()));
        for path in if backend_first { [&back, &front] } else { [&front, &back] } {
            nodes.nodes().remove(path).unwrap();
        }
        wait(|| host.vif(&a).is_none());
        wait(|| a.guest.mapped() == 0);
        assert_eq!(nodes.nodes().find(&back).unwrap(), None, "what was removed stays away");
        b.received();
    }
}

#[test]
fn a_vif_does_not_connect_after_its_hotplug_script_failed() {
    let host = Host::new();
    let mut a = Front::attached(&host, 1, FrontSpec::default());
    a.put_back("hotplug-status", "error");
    a.connect();
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    assert!(host.connected(&b) && !host.connected(&a));
    a.put_back("hotplug-status", "connected");
    wait(|| host.connected(&a));
}

#[test]
fn frames_above_the_mtu_are_dropped() {
    let host = Host::new();
    let a = Front::connected(&host, 1, FrontSpec::default());
    for (domain, keys) in
        [(2, vec![("mtu", "1000")]), (3, vec![("mtu", "9000"), ("ringmain/mtu", "1000")])]
    {
        let b =
            Front::connected(&host, domain, FrontSpec { back_keys: keys, ..FrontSpec::default() });
        let y = domain as u8;
        introduce((&a, 1), (&b, y));
        // An IP packet of 1000 bytes, and one of 1001.
        a.queues[0].send(&tcp(1, y, 960), CSUM_BLANK, None);
        a.queues[0].send(&tcp(1, y, 961), CSUM_BLANK, None);
        // Segments that fit, whatever their sum.
        a.queues[0].send(&tcp(1, y, 9600), CSUM_BLANK, Some((1, 960)));
        let lengths: Vec<usize> = b.expect(2).iter().map(|got| got.frame.len()).collect();
        assert_eq!(lengths, [54 + 960, 54 + 9600]);
    }
    let ports = host.service.as_ref().unwrap().vifs().into_iter().filter_map(|vif| vif.port);
    let counters = ports.flat_map(|port| host.fabric.counters(port));
    assert_eq!(
        counters.map(|queue| queue.dropped(network::count::DropReason::OverMtu)).sum::<u64>(),
        2
    );
}
