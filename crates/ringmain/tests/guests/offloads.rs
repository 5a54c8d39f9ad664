//! A guest that takes offloads beside one that does not.

use super::lab::{Attach, Lab};
use super::pool::SharedLab;
use super::traffic::{At, LIMIT, ping_both, tcp_both, udp};
use lab::guest::Shell;

/// Everything that virtio-net can leave to the other side.
const NOTHING: &[&str] = &[
    "csum=off",
    "gso=off",
    "host_tso4=off",
    "host_tso6=off",
    "host_ecn=off",
    "host_ufo=off",
    "guest_csum=off",
    "guest_tso4=off",
    "guest_tso6=off",
    "guest_ecn=off",
    "guest_ufo=off",
];

#[test]
#[ignore = "boots guests"]
fn one_guest_whose_device_has_no_offloads() {
    let lab = Lab::new(&["", ""]);
    let plain = Attach { options: NOTHING, ..Attach::default() };
    let [a, b] = lab.boot([(0, Attach::default()), (1, plain)]);
    let offloads = |guest: &lab::guest::Guest| guest.must("ethtool -k eth0", LIMIT).unwrap();
    assert!(offloads(&a).contains("tcp-segmentation-offload: on"));
    assert!(offloads(&b).contains("tcp-segmentation-offload: off"));
    let (a, b): (At<'_>, At<'_>) = ((&a, 0), (&b, 1));
    ping_both(a, b, 4000);
    tcp_both(a, b, 8);
    udp(&[(a.0, b), (b.0, a)]);
    // What one guest sends in large pieces the other gets in small ones.
    let stats = lab.daemon.stats().unwrap();
    assert!(stats.ports.iter().any(|port| port.total.copies > 0), "{stats:#?}");
    lab.check_balance();
}

#[test]
#[ignore = "boots guests"]
fn one_guest_that_switches_its_offloads_off_and_on() {
    let lab = SharedLab::new();
    let [a, b] = lab.guests();
    for state in ["off", "on"] {
        let switch =
            format!("ethtool -K eth0 tx {state} sg {state} tso {state} gso {state} gro {state}");
        b.must(&switch, LIMIT).unwrap();
        tcp_both((a, 0), (b, 1), 8);
    }
    lab.check_balance();
}
