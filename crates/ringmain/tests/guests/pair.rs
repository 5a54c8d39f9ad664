//! Two stock guests with four queue pairs each.

use std::sync::atomic::{AtomicBool, Ordering};

use super::lab::{Attach, Lab, socket};
use super::noise::Noise;
use super::pool::SharedLab;
use super::traffic::{At, LIMIT, address, eventually, ping, ping_both, tcp_both, udp};
use lab::guest::Shell;

#[test]
#[ignore = "boots guests"]
fn ping_tcp_and_udp_go_both_ways() {
    let lab = SharedLab::new();
    let [a, b] = lab.guests();
    let (a, b): (At<'_>, At<'_>) = ((a, 0), (b, 1));
    ping_both(a, b, 20_000);
    tcp_both(a, b, 8);
    udp(&[(a.0, b), (b.0, a)]);
    lab.check_balance();

    let stats = lab.daemon.stats().unwrap();
    let names: Vec<&str> = stats.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["guest-0", "guest-1", "guest-2", "guest-3"]);
}

/// Two more ports exchange single frames with interrupts, so that the thread stays awake. Streams
/// would stand still if an interrupt were lost.
#[test]
#[ignore = "boots guests"]
fn a_thread_interrupts_guests() {
    let lab = Lab::with_workers("interrupt-cpu = 0", &[""; 4]);
    let [a, b] = lab.boot([(0, Attach::default()), (1, Attach::default())]);
    let (a, b): (At<'_>, At<'_>) = ((&a, 0), (&b, 1));
    let sockets = [2, 3].map(|port| socket(lab.daemon.dir(), port).display().to_string()).join(",");
    let line = format!("--ports {sockets} --interrupts --window 1 --duration 3600 --size 64");
    let (args, stop) = (load::Args::from_words(line.split(' ')).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let others = scope.spawn(|| load::run_until(&args, &stop));
        // Ends the load also if a check fails.
        let _stop = Stop(&stop);
        let sent = || lab.daemon.stats().unwrap().interrupt_thread_interrupts.unwrap();
        eventually("the thread to interrupt", || sent() > 0);
        let before = sent();
        ping_both(a, b, 20_000);
        tcp_both(a, b, 8);
        udp(&[(a.0, b), (b.0, a)]);
        assert!(sent() > before, "the thread sleeps");
        stop.store(true, Ordering::Relaxed);
        assert!(others.join().unwrap().unwrap().is_right());
    });
    lab.check_balance();
}

/// Sets a flag when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "boots guests"]
fn an_mtu_of_9000_is_told_to_guests_and_carried() {
    let lab = Lab::new(&["mtu = 9000", "mtu = 9000"]);
    let large = Attach { options: &["host_mtu=9000"], ..Attach::default() };
    let [a, b] = lab.boot([(0, large), (1, large)]);
    for guest in [&a, &b] {
        assert_eq!(guest.must("cat /sys/class/net/eth0/mtu", LIMIT).unwrap(), "9000\n");
        // Without segmentation offload frames are as long as the MTU allows.
        guest.must("ethtool -K eth0 tso off gso off", LIMIT).unwrap();
    }
    let (a, b): (At<'_>, At<'_>) = ((&a, 0), (&b, 1));
    // 20 bytes of IP header; the largest ping fills a frame wholly.
    ping_both(a, b, 8980);
    tcp_both(a, b, 8);
    udp(&[(a.0, b)]);
    let longest = lab.daemon.stats().unwrap();
    let port = &longest.ports[0].total;
    assert!(port.tx_bytes / port.tx_frames.max(1) > 2000, "{longest:#?}");
    lab.check_balance();
}

#[test]
#[ignore = "boots guests"]
fn the_number_of_queues_changes_under_streams_that_do_not_break() {
    let lab = SharedLab::new();
    let [a, b] = lab.guests();
    ping(a, &address(1));
    let noise = Noise::start([a, b]);

    for (ours, theirs) in [(4, 1), (1, 4), (3, 3), (2, 4), (4, 2), (1, 1), (4, 4)] {
        let before = lab.daemon.stats().unwrap();
        for (guest, queues) in [(a, ours), (b, theirs)] {
            // ethtool fails when the number is the current one.
            guest.run(&format!("ethtool -L eth0 combined {queues}"), LIMIT).unwrap();
            let said = guest.must("ethtool -l eth0 | tail -n 1", LIMIT).unwrap();
            assert_eq!(said.split_whitespace().last(), Some(queues.to_string().as_str()), "{said}");
        }
        // The streams get on with each combination.
        let carried = |stats: &control::api::Stats| {
            stats.ports.iter().map(|port| port.total.rx_bytes).sum::<u64>()
        };
        eventually(&format!("4 MiB more with {ours} and {theirs} queues"), || {
            carried(&lab.daemon.stats().unwrap()) >= carried(&before) + (4 << 20)
        });
    }
    noise.finish();
    lab.check_balance();
}
