use hypervisor::DomId;
use hypervisor::test::Machine;

use super::*;

fn read(keys: &[(&str, &str)]) -> Result<FrontendKeys, String> {
    let hypervisor = Machine::new().hypervisor(DomId(0));
    let nodes = hypervisor.store.nodes();
    for (key, value) in keys {
        nodes.put(&format!("/vbd/{key}"), value).unwrap();
    }
    FrontendKeys::read(nodes, "/vbd", 4).map_err(|error| error.to_string())
}

const ONE: [(&str, &str); 2] = [("ring-ref", "8"), ("event-channel", "3")];

fn one_with(keys: &[(&'static str, &'static str)]) -> Result<FrontendKeys, String> {
    read(&[&ONE[..], keys].concat())
}

#[test]
fn one_queue_has_its_keys_without_a_prefix() {
    let keys = one_with(&[("queue-0/ring-ref", "99"), ("ring-ref0", "98")]).unwrap();
    let queue = QueueKeys { ring: vec![GrantRef(8)], port: RemotePort(3) };
    assert_eq!(keys, FrontendKeys { layout: Layout::Bits32, queues: vec![queue] });
}

#[test]
fn the_layout_is_that_of_the_protocol() {
    for (protocol, layout) in [("x86_64-abi", Layout::Bits64), ("x86_32-abi", Layout::Bits32)] {
        assert_eq!(one_with(&[("protocol", protocol)]).unwrap().layout, layout);
        assert_eq!(layout.name(), protocol);
    }
    let error = one_with(&[("protocol", "m68k-abi")]).unwrap_err();
    assert_eq!(error, "protocol is \"m68k-abi\", x86_64-abi and x86_32-abi are possible");
    assert_eq!(Layout::named(Some(Layout::NATIVE.name())), Some(Layout::NATIVE));
}

#[test]
fn pages_are_numbered_where_an_order_is_given() {
    let numbered = [("ring-ref0", "20"), ("ring-ref1", "21"), ("ring-page-order", "1")];
    assert_eq!(one_with(&numbered).unwrap().queues[0].ring, [GrantRef(20), GrantRef(21)]);
    let zero = [("ring-ref0", "20"), ("ring-page-order", "0")];
    assert_eq!(one_with(&zero).unwrap().queues[0].ring, [GrantRef(20)]);
    assert_eq!(one_with(&[("ring-page-order", "0")]).unwrap_err(), "/vbd/ring-ref0 is missing");
    let error = one_with(&[("ring-page-order", "5")]).unwrap_err();
    assert_eq!(error, "ring-page-order is 5, 0 to 4 are possible");
}

#[test]
fn several_queues_have_directories() {
    let two = [
        ("multi-queue-num-queues", "2"),
        ("queue-0/ring-ref", "8"),
        ("queue-0/event-channel", "3"),
        ("queue-1/ring-ref", "9"),
        ("queue-1/event-channel", "4"),
    ];
    assert_eq!(read(&two).unwrap().queues.len(), 2);
    let with = |at: usize, value| {
        let mut keys = two;
        keys[at].1 = value;
        read(&keys).unwrap_err()
    };
    assert_eq!(with(3, "8"), "two rings in the page with grant reference 8");
    assert_eq!(with(4, "3"), "event channel 3 is named twice");
    assert_eq!(with(0, "3"), "/vbd/queue-2/ring-ref is missing");
    for queues in ["0", "5", "70000"] {
        let want = format!("multi-queue-num-queues is {queues}, 1 to 4 are possible");
        assert_eq!(with(0, queues), want);
    }
}
