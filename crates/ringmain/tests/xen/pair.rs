//! Traffic between stock guests, and with dom0.

use super::host::{QUEUES, Scene, VIF};
use super::traffic::{
    At, LIMIT, RETURN, address, address_it, clean, listens, ping, ping_both, tcp_both, udp,
};
use lab::guest::Shell;
use lab::xen::{Dom0, Domain, DomainSpec, Kind};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

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

/// Attempts of the test below.
const ATTEMPTS: u32 = 6;

#[test]
#[ignore = "boots Xen"]
fn a_pvh_guest_beside_a_pv_guest() {
    let scene = Scene::new("");
    let [pv, _] = scene.guests();
    address_it(pv, &scene.plug(pv, ""), 0);
    for attempt in 1.. {
        scene.dom0.must("xl dmesg -c", LIMIT).unwrap();
        let spec =
            DomainSpec { kind: Kind::Pvh, max_queues: Some(QUEUES), ..DomainSpec::new("pvh") };
        let pvh = scene.dom0.create(&spec.vif(VIF)).unwrap();
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| pvh_beside_pv(&pvh, pv))) else {
            return;
        };
        let said = scene.dom0.must("xl dmesg", LIMIT).unwrap();
        let is_lost = said.contains("Triple fault") || sleeps_for_good(&scene.dom0, &pvh);
        if !is_lost || attempt == ATTEMPTS {
            eprintln!("attempt {attempt}; Xen said: {said}");
            resume_unwind(failure);
        }
        eprintln!("once more: the emulated processor failed");
        clean(pv).unwrap();
    }
}

/// Whether a guest is asleep although its console has something for it.
///
/// QEMU's emulation of nested virtualisation now and then loses the state of such a guest, whose
/// processor then shuts down: a triple fault, with Xen's own registers for the guest's, or with the
/// guest's own and nothing amiss. Or an interrupt is lost; Xen sends none before the guest has
/// handled it, so the guest sleeps, whatever its console and its timer have for it. A backend can
/// do neither: at worst it upsets the guest's kernel, which then says so or is busy.
fn sleeps_for_good(dom0: &Dom0, guest: &Domain) -> bool {
    let state = || {
        let list = format!("xl list {} | tail -n 1", guest.id());
        let line = dom0.must(&list, LIMIT).unwrap();
        let words = line.split_whitespace().skip(4);
        // The state, and the processor time so far.
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = state();
    let answers = guest.run("true", LIMIT / 3).is_ok();
    let after = state();
    eprintln!("the guest answers: {answers}; before and after: {before:?}, {after:?}");
    !answers && before == after && after.first().is_some_and(|flags| flags.contains('b'))
}

fn pvh_beside_pv(pvh: &Domain, pv: &Domain) {
    pvh.ready(LIMIT).unwrap();
    address_it(pvh, "eth0", 2);
    assert_eq!(pvh.must("ls -d /sys/class/net/eth0/queues/tx-* | wc -l", LIMIT).unwrap(), "4\n");
    ping_both((pv, 0), (pvh, 2), 4000);
    tcp_both((pv, 0), (pvh, 2), 1);
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
