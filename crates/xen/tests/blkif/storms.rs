//! Frontends of vbds that signal and change the store without end, beside one that does its work.

use crate::blkfront::{Front, Host, OKAY, Spec, wait};
use hypervisor::{Channel, DomId, PAGE};

/// Both vbds carry out a write and a read.
#[track_caller]
fn serve(fronts: [&Front; 2], fill: u8) {
    for front in fronts {
        assert_eq!(front.write(0, 8, &[fill; PAGE]), OKAY);
        assert!(front.read(0, 8, 8) == (OKAY, vec![fill; PAGE]));
    }
}

/// Signals without requests, and a channel that is closed while requests are under way.
#[test]
fn event_channels_flooded_and_closed() {
    let host = Host::new(2);
    let good = Front::connected(&host, 1, Spec::default());
    let mut bad = Front::connected(&host, 2, Spec { queues: 2, ..Spec::default() });
    for round in 0..200 {
        for queue in &bad.queues {
            (0..500).for_each(|_| queue.port.notify());
        }
        serve([&good, &bad], round);
    }
    assert_eq!(host.vbd(&bad).unwrap().bus.violations, 0);
    for queue in &bad.queues {
        (0..16).for_each(|n| drop(queue.start_write(n * 8, &[1; PAGE])));
        queue.push();
    }
    for queue in &mut bad.queues {
        queue.port = bad.guest.open(DomId(0)).unwrap();
        (0..500).for_each(|_| queue.port.notify());
    }
    for fill in 0..100 {
        assert_eq!(good.write(0, 8, &[fill; PAGE]), OKAY);
    }
    assert!(host.is_connected(&good));
    bad.close();
    wait(|| bad.guest.mapped() == 0);
    bad.put("state", 1);
    bad.connect();
    wait(|| host.is_connected(&bad));
    serve([&good, &bad], 201);
}

/// A frontend changes its keys as fast as it can. Others are connected and served meanwhile.
#[test]
fn a_flood_of_changes_in_the_store() {
    let host = Host::new(1);
    let good = Front::connected(&host, 1, Spec::default());
    let bad = Front::connected(&host, 2, Spec::default());
    for round in 0..300u32 {
        for n in 0..20 {
            bad.put("feature-persistent", (round + n) % 2);
            // The state that it has already.
            bad.put("state", 4);
        }
        if round % 100 == 0 {
            serve([&good, &bad], round as u8);
        }
    }
    let late = Front::connected(&host, 3, Spec::default());
    serve([&good, &late], 7);
    assert!(host.is_connected(&bad));
    assert_eq!(host.vbd(&bad).unwrap().bus.violations, 0);
}
