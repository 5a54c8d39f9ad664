//! Keys and rings that are refused, by name.

use super::*;

/// Connects with keys that `spoil` has changed, and returns why they were refused.
fn refused(host: &Host, spec: FrontSpec, spoil: impl FnOnce(&Front)) -> String {
    let mut bad = Front::attached(host, 3, spec);
    wait(|| bad.back_state() == Some(2));
    bad.make();
    spoil(&bad);
    bad.put("state", 4);
    let reason = host.stopped(&bad);
    assert_eq!(bad.guest.mapped(), 0);
    // The frontend may try again, with better keys.
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
    let ahead = |bad: &Front| bad.queues[0].set(bad.queues[0].rx_ring, crate::front::REQ_PROD, 257);
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
