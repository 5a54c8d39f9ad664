//! Negotiation with frontends of all kinds, and frontends that are refused.

mod front;

use front::netfront::Netfront;
use front::tcp::{at, is_right, tcp, tcp6};
use front::{CSUM_BLANK, Front, FrontSpec, Host, Received, frame, introduce, wait, what};
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

/// Connects with keys that `spoil` has changed, and returns why they were refused.
fn refused(host: &Host, spec: FrontSpec, spoil: impl FnOnce(&Front)) -> String {
    let mut bad = Front::attached(host, 3, spec);
    wait(|| bad.back_state() == Some(2));
    bad.make();
    spoil(&bad);
    bad.put("state", 4);
    let reason = host.stopped(&bad);
    assert_eq!(bad.guest.mapped(), 0);
    // It may try again, with better keys.
    bad.spec = FrontSpec::default();
    ["multi-queue-num-queues", "ctrl-ring-ref", "event-channel-ctrl"]
        .iter()
        .for_each(|key| bad.remove(key));
    bad.begin_anew();
    bad.connect();
    wait(|| host.connected(&bad));
    let node = "/local/domain/0/error/backend/vif/3/0/error";
    assert_eq!(
        host.machine.hypervisor(DomId(0)).store.nodes().find(node).unwrap(),
        None,
        "it is past"
    );
    bad.device(|device| host.machine.forget(device)).unwrap();
    wait(|| host.vif(&bad).is_none());
    reason
}

#[test]
fn wrong_keys_are_refused_by_name() {
    let host = Host::new();
    let path = "/local/domain/3/device/vif/0";
    let one =
        |key: &str, value: &str| refused(&host, FrontSpec::default(), |bad| bad.put(key, value));
    assert_eq!(
        one("request-rx-copy", "0"),
        "request-rx-copy is not 1: frames are received by copy only"
    );
    for n in ["0", "5", "100000", "4294967295"] {
        let reason = format!("multi-queue-num-queues is {n}, 1 to 4 are possible");
        assert_eq!(one("multi-queue-num-queues", n), reason);
    }
    for key in [
        "multi-queue-num-queues",
        "tx-ring-ref",
        "rx-ring-ref",
        "event-channel-tx",
        "event-channel-rx",
        "feature-sg",
        "feature-gso-tcpv4",
        "feature-gso-tcpv6",
        "feature-no-csum-offload",
        "feature-ipv6-csum-offload",
        "feature-rx-notify",
        "ctrl-ring-ref",
    ] {
        assert_eq!(one(key, "much"), format!("{path}/{key}: \"much\" is not a number in range"));
        assert_eq!(
            one(key, "4294967296"),
            format!("{path}/{key}: \"4294967296\" is not a number in range")
        );
    }
    assert_eq!(one("ctrl-ring-ref", "77"), format!("{path}/event-channel-ctrl is missing"));
}

#[test]
fn missing_keys_are_refused_by_name() {
    let host = Host::new();
    let path = "/local/domain/3/device/vif/0";
    let without = |queues, key: &str| {
        refused(&host, FrontSpec { queues, ..FrontSpec::default() }, |bad| bad.remove(key))
    };
    assert_eq!(
        without(1, "request-rx-copy"),
        "request-rx-copy is not 1: frames are received by copy only"
    );
    for (queues, key) in [
        (1, "tx-ring-ref"),
        (1, "rx-ring-ref"),
        (2, "queue-1/tx-ring-ref"),
        (4, "queue-3/event-channel-rx"),
    ] {
        assert_eq!(without(queues, key), format!("{path}/{key} is missing"));
    }
    assert_eq!(without(1, "event-channel-tx"), format!("{path}/event-channel is missing"));
    // More queues than there are; a single one that is not flat; several that are.
    let keys = |keys: &[(&'static str, &'static str)]| FrontSpec {
        keys: keys.to_vec(),
        ..FrontSpec::default()
    };
    assert_eq!(
        refused(&host, keys(&[("multi-queue-num-queues", "2")]), |_| ()),
        format!("{path}/queue-0/event-channel is missing")
    );
    let single = FrontSpec {
        queues: 2,
        keys: vec![("multi-queue-num-queues", "1")],
        ..FrontSpec::default()
    };
    assert_eq!(refused(&host, single, |_| ()), format!("{path}/event-channel is missing"));
}

#[test]
fn invalid_rings_are_refused_by_name() {
    let host = Host::new();
    let spec = |keys: &[(&'static str, &'static str)]| FrontSpec {
        keys: keys.to_vec(),
        ..FrontSpec::default()
    };
    let same = |bad: &Front| bad.put("rx-ring-ref", bad.queues[0].tx_ring.1);
    let reason = refused(&host, spec(&[]), same);
    assert!(reason.starts_with("two rings in the page with grant reference "), "{reason}");
    let same = |bad: &Front| bad.put("event-channel-rx", bad.queues[0].tx_port.number().0);
    let reason = refused(&host, spec(&[]), same);
    assert!(
        reason.starts_with("event channel ") && reason.ends_with(" is named twice"),
        "{reason}"
    );
    let same = |bad: &Front| bad.put("queue-1/tx-ring-ref", bad.queues[0].tx_ring.1);
    let reason = refused(&host, FrontSpec { queues: 2, ..spec(&[]) }, same);
    assert!(reason.starts_with("two rings in the page with grant reference "), "{reason}");
    // Granted for reading, to another domain, not any more.
    let other = |to, writable| {
        move |bad: &Front| {
            let page = bad.page();
            bad.put("tx-ring-ref", bad.guest.grant(DomId(to), page, writable));
        }
    };
    for reason in
        [refused(&host, spec(&[]), other(0, false)), refused(&host, spec(&[]), other(9, true))]
    {
        assert!(
            reason.starts_with("domain 3 has not granted page ")
                && reason.ends_with(" to us for writing"),
            "{reason}"
        );
    }
    let revoke = |bad: &Front| assert!(bad.guest.revoke(bad.queues[0].rx_ring.1));
    let reason = refused(&host, spec(&[]), revoke);
    assert!(reason.starts_with("domain 3 has not granted page "), "{reason}");
    // A ring that has more requests than fit.
    let ahead = |bad: &Front| bad.queues[0].set(bad.queues[0].rx_ring, front::REQ_PROD, 257);
    assert_eq!(
        refused(&host, spec(&[]), ahead),
        "request index jumped to 257, 257 ahead in a ring of 256"
    );
    // A channel that is bound already, and one that is for another domain.
    let foreign =
        |bad: &Front| bad.put("event-channel-tx", bad.guest.open(DomId(9)).unwrap().number().0);
    let reason = refused(&host, spec(&[]), foreign);
    assert!(reason.starts_with("domain 3 has no event channel "), "{reason}");
    let control = FrontSpec { control: true, ..spec(&[("ctrl-ring-ref", "9999")]) };
    assert_eq!(
        refused(&host, control, |_| ()),
        "domain 3 has not granted page 9999 to us for writing"
    );
}

/// Values of any length and of any bytes, and many nodes: the backend refuses or ignores them.
#[test]
fn invalid_values_in_the_store() {
    let host = Host::new();
    let raw = |key: &'static str, value: Vec<u8>| {
        refused(&host, FrontSpec::default(), move |bad| {
            let path = bad.device(|device| device.frontend_path());
            bad.guest.store().nodes().write(&format!("{path}/{key}"), &value).unwrap();
        })
    };
    let reason = raw("tx-ring-ref", vec![0xff, 0xfe, 0x31]);
    assert!(reason.contains("tx-ring-ref") && reason.contains("is not text"), "{reason}");
    let reason = raw("feature-sg", b"1".repeat(2000));
    assert!(reason.contains("feature-sg") && reason.len() < 200, "{reason}");
    let reason = raw("event-channel-rx", b"\x1b[2J\n".to_vec());
    assert!(!reason.contains(|c: char| c.is_control()), "{reason}");
    // Keys that the backend does not know are not read.
    let mut a = Front::attached(&host, 5, FrontSpec::default());
    for n in 0..900 {
        a.put(&format!("rubbish-{n}"), "x".repeat(300));
    }
    a.put("queue-7/tx-ring-ref", "no");
    a.put("mtu", "-1");
    a.connect();
    wait(|| host.connected(&a));
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
    // It does not come back by itself.
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
fn invalid_settings_are_named() {
    let host = Host::new();
    for (key, value, problem) in [
        ("ringmain/vlan", "4095", "\"4095\" is not a VLAN from 1 to 4094"),
        ("ringmain/trunk", "1::2", "\"\" is not a VLAN from 1 to 4094"),
        ("ringmain/mtu", "65536", "\"65536\" is not a number in range"),
    ] {
        let mut a = Front::attached(
            &host,
            1,
            FrontSpec { back_keys: vec![(key, value)], ..FrontSpec::default() },
        );
        a.connect();
        assert_eq!(host.stopped(&a), format!("{}/{key}: {problem}", a.back()));
        a.device(|device| host.machine.forget(device)).unwrap();
        wait(|| host.vif(&a).is_none());
    }
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
