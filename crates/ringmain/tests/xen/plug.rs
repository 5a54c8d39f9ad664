//! Vifs that come and go, by the toolstack's hand and by the guest's.

use super::exchange::send_noise;
use super::host::{QUEUES, Scene};
use super::traffic::{
    At, LIMIT, address, address_it, eventually, listens, ping, ping_both, tcp_both,
};
use control::api::PortState;
use lab::guest::Shell;
use lab::xen::DomainSpec;

#[test]
#[ignore = "boots Xen"]
fn several_vifs_are_attached_listed_and_detached() {
    let scene = Scene::new("");
    let [a, b] = scene.plugged(["", ""]);
    let second = scene.plug(a, ",mac=00:16:3e:77:00:02");
    let third = scene.plug(a, "");
    let listed = scene.dom0.must(&format!("xl network-list {}", a.id()), LIMIT).unwrap();
    // A line for each, with its handle first and its state in the fifth place, under a line of
    // titles.
    let rows: Vec<Vec<&str>> =
        listed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows.iter().map(|row| (row[0], row[4])).collect::<Vec<_>>(),
        [("0", "4"), ("1", "4"), ("2", "4")],
        "{listed}"
    );
    assert_eq!(rows[1][2], "00:16:3e:77:00:02", "{listed}");

    // Each carries traffic of its own: the address moves from one to the next.
    ping(a, &address(1));
    for interface in [&second, &third] {
        a.must("ip addr flush dev eth0; ip addr flush dev eth1; ip addr flush dev eth2", LIMIT)
            .unwrap();
        address_it(a, interface, 0);
        let to_b: At<'_> = (b, 1);
        ping_both((a, 0), to_b, 2000);
    }
    for handle in [0, 1, 2] {
        assert!(scene.port(a, handle).unwrap().total.tx_frames > 0, "vif {handle} carried nothing");
    }

    // One goes, the others stay.
    scene.dom0.must(&format!("xl network-detach {} 1", a.id()), LIMIT).unwrap();
    eventually("the port to go", || scene.port(a, 1).is_none());
    ping_both((a, 0), (b, 1), 2000);
    let listed = scene.dom0.must(&format!("xl network-list {}", a.id()), LIMIT).unwrap();
    assert_eq!(listed.lines().count(), 3, "{listed}");

    // And another comes, with whatever number the toolstack gives it.
    a.must("until ! [ -d /sys/class/net/eth1 ]; do usleep 50000; done", LIMIT).unwrap();
    scene.dom0.must(&format!("xl network-attach {} script=vif-ringmain", a.id()), LIMIT).unwrap();
    let prefix = format!("vif{}.", a.id());
    eventually("a third vif", || {
        let ports = scene.stats().ports.into_iter();
        ports
            .filter(|port| port.name.starts_with(&prefix) && port.state == PortState::Connected)
            .count()
            == 3
    });
    scene.check_balance();
}

#[test]
#[ignore = "boots Xen"]
fn a_frontend_is_unbound_and_bound_again() {
    let scene = Scene::new("");
    let [a, b] = scene.plugged(["", ""]);
    tcp_both((a, 0), (b, 1), 1);
    for queues in [QUEUES, 2] {
        a.must("echo vif-0 >/sys/bus/xen/drivers/vif/unbind; ! [ -d /sys/class/net/eth0 ]", LIMIT)
            .unwrap();
        eventually("the vif to stand by", || {
            scene.port(a, 0).is_some_and(|port| port.state != PortState::Connected)
        });
        // Meanwhile the guest may have come to want something else.
        a.must(&format!("echo {queues} >/sys/module/xen_netfront/parameters/max_queues"), LIMIT)
            .unwrap();
        a.must("echo vif-0 >/sys/bus/xen/drivers/vif/bind", LIMIT).unwrap();
        a.must("until [ -d /sys/class/net/eth0 ]; do usleep 50000; done", LIMIT).unwrap();
        address_it(a, "eth0", 0);
        tcp_both((a, 0), (b, 1), 1);
        let rings = a.must("ls -d /sys/class/net/eth0/queues/tx-* | wc -l", LIMIT).unwrap();
        assert_eq!(rings.trim(), queues.to_string());
    }
    scene.check_balance();
}

#[test]
#[ignore = "boots Xen"]
fn a_guest_is_destroyed_under_traffic_and_its_neighbours_go_on() {
    let scene = Scene::new("");
    let spec = DomainSpec { max_queues: Some(QUEUES), ..DomainSpec::new("short-lived") };
    let c = scene.dom0.create(&spec.vif("script=vif-ringmain")).unwrap();
    let [a, b] = scene.plugged(["", ""]);
    c.ready(LIMIT).unwrap();
    address_it(&c, "eth0", 2);

    ping(a, &address(1));
    let neighbours = send_noise(a, b, 1);
    // Both to it and from it.
    let servers = [&c, b].map(|guest| guest.spawn("iperf -s").unwrap());
    listens(&c, "netstat -ltn", 5001);
    listens(b, "netstat -ltn", 5001);
    ping(b, &address(2));
    let to = b.spawn(&format!("iperf -c {} -t 1000 -P 4", address(2))).unwrap();
    let from = c.spawn(&format!("iperf -c {} -t 1000 -P 4", address(1))).unwrap();
    let name = format!("vif{}.0", c.id());
    let busy = |bytes: u64| {
        let total = scene.port(&c, 0).unwrap().total;
        total.tx_bytes > bytes && total.rx_bytes > bytes
    };
    eventually("traffic", || busy(4 << 20));
    c.destroy().unwrap();
    assert!(from.wait(LIMIT).is_err(), "it ran in a guest that is gone");
    eventually("the port to go", || scene.stats().ports.iter().all(|port| port.name != name));

    // The neighbours have lost nothing, and get on.
    let carried = || scene.port(b, 0).unwrap().total.rx_bytes;
    let before = carried();
    eventually("the neighbours", || carried() > before + (4 << 20));
    a.must("touch /tmp/stop", LIMIT).unwrap();
    neighbours.finish();
    to.stop(LIMIT).unwrap();
    servers.into_iter().for_each(|server| drop(server.stop(LIMIT)));
    let failed: Vec<_> =
        scene.stats().ports.into_iter().filter(|port| port.violations > 0).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
