//! Traffic between stock guests, and with dom0.

use super::host::Scene;
use super::traffic::{At, LIMIT, RETURN, address, listens, ping, ping_both, tcp_both, udp};
use lab::guest::Shell;
use lab::xen::Domain;

const HOST: &str = "10.77.0.100";

/// Traffic of all kinds, both ways.
pub fn talk(a: At<'_>, b: At<'_>) {
    ping_both(a, b, 4000);
    tcp_both(a, b, 2);
    udp(&[(a.0, b), (b.0, a)]);
}

/// Eight streams at once, which end at the same time: iperf's server may reset those that go on
/// when others of their group have ended.
pub fn many_streams(from: &Domain, to: &Domain, address: &str) {
    let server = to.spawn("iperf -s").unwrap();
    listens(to, "netstat -ltn", 5001);
    let said = from.must(&format!("iperf -c {address} -P 8 -t 3 -f k"), LIMIT).unwrap();
    assert!(said.contains("[SUM]") && !said.contains("failed"), "{said}");
    server.stop(LIMIT).unwrap();
}

#[test]
#[ignore = "boots Xen"]
fn one_queue_beside_four() {
    let scene = Scene::new("");
    let [_, single] = scene.guests();
    single.load_frontend(1, LIMIT).unwrap();
    let [a, b] = scene.plugged(["", ""]);
    // A frontend with one queue has its keys where they were before there were several.
    for (guest, ring, queues) in [(a, "queue-3/tx-ring-ref", 4), (b, "tx-ring-ref", 1)] {
        let read = format!("xenstore-read /local/domain/{}/device/vif/0/{ring}", guest.id());
        scene.dom0.must(&read, LIMIT).unwrap();
        assert_eq!(scene.port(guest, 0).unwrap().queues.len(), queues);
    }
    talk((a, 0), (b, 1));
    many_streams(a, b, &address(1));
    many_streams(b, a, &address(0));
    scene.check_balance();
    // Demonstrations tell the daemon's CPU time by this.
    let stat = scene.process_stat();
    assert!(stat.contains("(ringmain)"), "{stat}");
}

#[test]
#[ignore = "boots Xen"]
fn guest_and_dom0_reach_each_other() {
    let scene =
        Scene::new("[[port]]\nname = \"uplink\"\nkind = \"tap\"\ndevice = \"rm0\"\nqueues = 2\n");
    scene
        .dom0
        .must(&format!("ip addr add {HOST}/24 dev rm0 && ip link set rm0 up"), LIMIT)
        .unwrap();
    let dom0 = scene.dom0.clone();
    let [a, _] = scene.plugged(["", ""]);
    ping(a, HOST);
    ping(&dom0, &address(0));
    a.must(&format!("ping -c 1 -W 60 -s 8000 {HOST}"), LIMIT).unwrap();

    // Noise there and back again, over TCP: what returns must be what went. Once as the guest's
    // connection, once as dom0's.
    for (from, to, at) in
        [(a as &dyn Shell, &dom0 as &dyn Shell, HOST.to_owned()), (&dom0, a, address(0))]
    {
        let listen = format!("exec busybox nc -ll -p 5000 -e sh -c '{RETURN}'");
        let echo = to.spawn(&listen).unwrap();
        to.must("until busybox netstat -ltn | grep -q ':5000 '; do usleep 50000; done", LIMIT)
            .unwrap();
        let there_and_back = format!(
            "head -c 2000000 /dev/urandom >/tmp/noise && busybox nc {at} 5000 </tmp/noise | busybox cmp - /tmp/noise; \
             code=$?; rm /tmp/noise; exit $code"
        );
        from.must(&there_and_back, LIMIT).unwrap();
        echo.stop(LIMIT).unwrap();
    }
}
