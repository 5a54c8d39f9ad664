//! Settings of an operator for a vif, in `xl.cfg` and in the script's own file.

use super::host::{QUEUES, Scene};
use super::pair::many_streams;
use super::traffic::{LIMIT, address, eventually, listens, ping};
use lab::guest::Shell;
use lab::xen::{Domain, DomainSpec};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Pings that must not arrive.
fn unreachable(from: &Domain, address: &str) {
    let said = from.run(&format!("ping -c 3 -i 0.3 -W 2 {address}"), LIMIT).unwrap();
    assert!(said.code != 0 && said.text.contains(" 0 packets received"), "{}", said.text);
}

fn dropped(scene: &Scene, guest: &Domain, reason: &str) -> u64 {
    scene.port(guest, 0).unwrap().total.drops.get(reason).copied().unwrap_or(0)
}

#[test]
#[ignore = "boots Xen"]
fn guests_in_different_vlans_do_not_see_each_other() {
    let scene = Scene::new("");
    let [a, b] = scene.plugged([" bridge=net.10", " bridge=net.20"]);
    for (guest, vlan, other) in [(a, 10, 1), (b, 20, 0)] {
        assert_eq!(scene.port(guest, 0).unwrap().vlan, Some(vlan));
        unreachable(guest, &address(other));
        assert_eq!(scene.port(guest, 0).unwrap().total.rx_frames, 0);
        assert!(dropped(&scene, guest, "no_receiver") > 0);
    }
    // With a vif in the same VLAN, they do.
    let second = scene.plug(b, " bridge=other.10");
    b.must(
        &format!(
            "ip addr flush dev eth0; ip addr add {}/24 dev {second}; ip link set {second} up",
            address(1)
        ),
        LIMIT,
    )
    .unwrap();
    ping(a, &address(1));
    ping(b, &address(0));
}

#[test]
#[ignore = "boots Xen"]
fn the_scripts_own_file_says_mtu_queues_and_source_lock() {
    let scene = Scene::new("");
    let file = "case $name in\n  few) queues=2 ;;\n  a) lock_mac=1 ;;\n  b) mtu=1300 ;;\nesac\n";
    scene.dom0.write("/etc/xen/vif-ringmain.conf", file).unwrap();
    let spec = DomainSpec { max_queues: Some(QUEUES), ..DomainSpec::new("few") };
    let few = scene.dom0.create(&spec.vif("script=vif-ringmain")).unwrap();
    let [a, b] = scene.plugged(["", ""]);
    few.ready(LIMIT).unwrap();
    let rings = few.must("ls -d /sys/class/net/eth0/queues/tx-* | wc -l", LIMIT).unwrap();
    assert_eq!((rings.trim(), scene.port(&few, 0).unwrap().queues.len()), ("2", 2));
    assert_eq!(scene.port(b, 0).unwrap().queues.len(), usize::from(QUEUES));

    // Longer packets towards the vif are dropped, and the guest is told its MTU.
    assert_eq!(scene.port(b, 0).unwrap().mtu, Some(1300));
    let told = scene
        .dom0
        .must(&format!("xenstore-read /local/domain/{}/device/vif/0/mtu", b.id()), LIMIT)
        .unwrap();
    assert_eq!(told, "1300\n");
    ping(a, &address(1));
    a.must(&format!("ping -c 1 -W 60 -s 1272 {}", address(1)), LIMIT).unwrap();
    // The other guest is told by the first packet that is too long, and sends fragments then.
    let long = a.run(&format!("ping -c 2 -i 5 -W 60 -s 1273 {}", address(1)), LIMIT).unwrap();
    let only_second = long.text.contains("2 packets transmitted, 1 packets received");
    assert!(only_second && long.text.contains("seq=1"), "{}", long.text);
    assert_eq!(dropped(&scene, b, "over_mtu"), 1, "{:#?}", scene.port(b, 0));

    // Another source address is not let in.
    assert!(scene.port(a, 0).unwrap().mac.is_some());
    a.must(
        "ip link set eth0 down; ip link set eth0 address 00:16:3e:77:00:99; ip link set eth0 up",
        LIMIT,
    )
    .unwrap();
    unreachable(a, &address(1));
    assert!(dropped(&scene, a, "source_locked") > 0, "{:#?}", scene.port(a, 0));
}

#[test]
#[ignore = "boots Xen"]
fn a_rate_is_that_of_the_whole_vif() {
    // 4 Mbit/s is much less than what guests do here even on a busy machine.
    const RATE: f64 = 500_000.0;
    // In guests that had served other tests, iperf ended twice before it had sent anything.
    let scene = Scene::with_bare_guests();
    let [a, b] = scene.plugged([" rate=500KB/s", ""]);
    ping(a, &address(1));
    let server = b.spawn("iperf -s").unwrap();
    listens(b, "netstat -ltn", 5001);
    let client = format!("iperf -c {} -P 16 -t 1000", address(1));
    let streams = a.spawn(&format!("until {client} >/tmp/client 2>&1; do sleep 1; done")).unwrap();
    // What has left, and when, in seconds of dom0.
    let look = || {
        let uptime = scene.dom0.must("cut -d' ' -f1 /proc/uptime", LIMIT).unwrap();
        (scene.port(a, 0).unwrap(), uptime.trim().parse::<f64>().unwrap())
    };
    // The guest's hash decides which queues the 16 connections use. Two queues are enough to tell
    // one limit for all of them from one limit for each.
    let busy = |port: &control::api::PortReport| {
        port.queues.iter().filter(|queue| queue.counts.tx_bytes > 20_000).count() >= 2
    };
    let begin = || eventually("two busy queues", || busy(&look().0));
    if let Err(failure) = catch_unwind(AssertUnwindSafe(begin)) {
        let said = a.run("cat /tmp/client; free; ps; dmesg | tail", LIMIT).unwrap();
        eprintln!("the client said: {}", said.text);
        resume_unwind(failure);
    }
    let (before, began) = look();
    eventually("a few seconds", || look().1 > began + 4.0);
    let (after, ended) = look();
    let sent = (after.total.tx_bytes - before.total.tx_bytes) as f64 / (ended - began);
    // A limit for each queue would let at least twice the rate through.
    assert!(sent > RATE / 20.0 && sent < RATE * 1.6, "{sent:.0} bytes a second");
    streams.stop(LIMIT).unwrap();
    a.must("rm /tmp/client", LIMIT).unwrap();
    server.stop(LIMIT).unwrap();

    // The other direction has no limit.
    many_streams(b, a, &address(0));
}
