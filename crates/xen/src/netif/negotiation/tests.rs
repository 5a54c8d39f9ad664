use hypervisor::DomId;
use hypervisor::test::Machine;

use super::*;
use crate::xenbus::State;

const OFFER: BackendFeatures =
    BackendFeatures { queues: 4, extensions: Extensions { ranges: false, guest_copy: false } };

fn request(keys: &[(&str, &str)]) -> Result<FrontendKeys, String> {
    let hypervisor = Machine::new().hypervisor(DomId(0));
    let nodes = hypervisor.store.nodes();
    for (key, value) in keys {
        nodes.write(&format!("/vif/{key}"), value.as_bytes()).unwrap();
    }
    FrontendKeys::read(nodes, "/vif", OFFER).map_err(|refusal| refusal.to_string())
}

const FLAT: [(&str, &str); 5] = [
    ("request-rx-copy", "1"),
    ("tx-ring-ref", "8"),
    ("rx-ring-ref", "9"),
    ("event-channel-tx", "20"),
    ("event-channel-rx", "21"),
];

fn flat_with(more: &[(&'static str, &'static str)]) -> Result<FrontendKeys, String> {
    request(&[&FLAT, more].concat())
}

#[test]
fn a_single_queue_is_flat() {
    let queue = QueueKeys {
        tx_ring: GrantRef(8),
        rx_ring: GrantRef(9),
        tx_port: RemotePort(20),
        rx_port: Some(RemotePort(21)),
    };
    let features = FrontendFeatures { csum_v4: true, ..FrontendFeatures::default() };
    let expected =
        FrontendKeys { queues: vec![queue], features, control: None, device_queue: None };
    assert_eq!(request(&FLAT), Ok(expected.clone()));
    assert_eq!(flat_with(&[("multi-queue-num-queues", "1")]), Ok(expected));
}

#[test]
fn one_event_channel_serves_both_rings() {
    let keys = [FLAT[0], FLAT[1], FLAT[2], ("event-channel", "20")];
    let queue = request(&keys).unwrap().queues[0];
    assert_eq!((queue.tx_port, queue.rx_port), (RemotePort(20), None));
}

#[test]
fn several_queues_have_directories() {
    let keys = [
        ("request-rx-copy", "1"),
        ("multi-queue-num-queues", "2"),
        ("queue-0/tx-ring-ref", "8"),
        ("queue-0/rx-ring-ref", "9"),
        ("queue-0/event-channel", "20"),
        ("queue-1/tx-ring-ref", "10"),
        ("queue-1/rx-ring-ref", "11"),
        ("queue-1/event-channel-tx", "21"),
        ("queue-1/event-channel-rx", "22"),
        // A key that may be left from an earlier connection.
        ("tx-ring-ref", "77"),
    ];
    let queues = request(&keys).unwrap().queues;
    assert_eq!(queues.iter().map(|queue| queue.tx_ring.0).collect::<Vec<_>>(), [8, 10]);
    assert_eq!(request(&keys[..7]).unwrap_err(), "/vif/queue-1/event-channel is missing");
}

#[test]
fn features_are_read() {
    let more = [
        ("feature-sg", "1"),
        ("feature-gso-tcpv4", "1"),
        ("feature-gso-tcpv6", "0"),
        ("feature-no-csum-offload", "1"),
        ("feature-ipv6-csum-offload", "1"),
        ("feature-rx-notify", "1"),
    ];
    let features = flat_with(&more).unwrap().features;
    let expected = FrontendFeatures {
        sg: true,
        gso_v4: true,
        gso_v6: false,
        csum_v4: false,
        csum_v6: true,
        rx_notify: true,
        ..FrontendFeatures::default()
    };
    assert_eq!(features, expected);
}

#[test]
fn a_control_ring_needs_its_channel() {
    let control =
        flat_with(&[("ctrl-ring-ref", "12"), ("event-channel-ctrl", "30")]).unwrap().control;
    assert_eq!(control, Some((GrantRef(12), RemotePort(30))));
    assert_eq!(
        flat_with(&[("ctrl-ring-ref", "12")]).unwrap_err(),
        "/vif/event-channel-ctrl is missing"
    );
}

#[test]
fn impossible_options_are_refused_with_a_message() {
    let refused = |more: &[_]| flat_with(more).unwrap_err();
    assert_eq!(
        request(&FLAT[1..]).unwrap_err(),
        "request-rx-copy is not 1: frames are received by copy only"
    );
    assert_eq!(request(&FLAT[..4]).unwrap_err(), "/vif/event-channel-rx is missing");
    assert_eq!(
        request(&[]).unwrap_err(),
        "request-rx-copy is not 1: frames are received by copy only"
    );
    let queues = |n| format!("multi-queue-num-queues is {n}, 1 to 4 are possible");
    assert_eq!(refused(&[("multi-queue-num-queues", "0")]), queues(0));
    assert_eq!(refused(&[("multi-queue-num-queues", "5")]), queues(5));
    assert_eq!(refused(&[("multi-queue-num-queues", "4294967295")]), queues(4_294_967_295u32));
    assert_eq!(
        refused(&[("multi-queue-num-queues", "-1")]),
        "/vif/multi-queue-num-queues: \"-1\" is not a number in range"
    );
    assert_eq!(
        refused(&[("tx-ring-ref", "eight")]),
        "/vif/tx-ring-ref: \"eight\" is not a number in range"
    );
    assert_eq!(refused(&[("rx-ring-ref", "8")]), "two rings in the page with grant reference 8");
    assert_eq!(refused(&[("event-channel-rx", "20")]), "event channel 20 is named twice");
    let control = [("ctrl-ring-ref", "9"), ("event-channel-ctrl", "30")];
    assert_eq!(refused(&control), "two rings in the page with grant reference 9");
}

#[test]
fn states_are_read_from_any_text() {
    let hypervisor = Machine::new().hypervisor(DomId(0));
    let nodes = hypervisor.store.nodes();
    assert_eq!(State::read(nodes, "/vif").unwrap(), State::Unknown);
    for (text, state) in [
        ("4", State::Connected),
        ("6", State::Closed),
        ("9", State::Unknown),
        ("x", State::Unknown),
    ] {
        nodes.write("/vif/state", text.as_bytes()).unwrap();
        assert_eq!(State::read(nodes, "/vif").unwrap(), state);
    }
    nodes.write("/vif/state", &[0xff, 0xfe]).unwrap();
    assert_eq!(State::read(nodes, "/vif").unwrap(), State::Unknown);
}

#[test]
fn the_offer_is_complete() {
    let hypervisor = Machine::new().hypervisor(DomId(0));
    let nodes = hypervisor.store.nodes();
    OFFER.write(nodes, "/back").unwrap();
    assert_eq!(nodes.text("/back/multi-queue-max-queues").unwrap(), "4");
    let on = nodes
        .directory("/back")
        .unwrap()
        .into_iter()
        .filter(|key| nodes.text(&format!("/back/{key}")).unwrap() == "1");
    assert_eq!(on.count(), 9);
    assert_eq!(nodes.text("/back/feature-rx-flip").unwrap(), "0");
}
