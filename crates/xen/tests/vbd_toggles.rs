//! Vbds that are connected and disconnected ten thousand times leave nothing behind, and a
//! neighbour is served meanwhile. The test is alone in its process, whose threads and descriptors
//! it counts.

#[path = "blkif/blkfront/mod.rs"]
mod blkfront;

use std::time::{Duration, Instant};

use blkfront::{Front, Host, OKAY, Spec, wait};
use hypervisor::PAGE;

/// Waits for a state of the backend without a sleep: each connection has three such waits.
#[track_caller]
fn await_state(front: &Front, state: u64) {
    let start = Instant::now();
    while front.back_state() != Some(state) {
        assert!(start.elapsed() < Duration::from_secs(60), "state {state}");
        std::thread::yield_now();
    }
}

/// Threads and descriptors of this process, without the kernel's threads for io_uring, which come
/// and go.
fn holdings() -> [usize; 2] {
    let entries = |kind| std::fs::read_dir(format!("/proc/self/{kind}")).unwrap().flatten();
    // A thread that has just ended has no name.
    let name = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    let own = |task: &std::fs::DirEntry| name(task).is_ok_and(|name| !name.starts_with("iou-"));
    [entries("task").filter(own).count(), entries("fd").count()]
}

#[test]
fn ten_thousand_connections() {
    let host = Host::new(1);
    let good = Front::connected(&host, 1, Spec::default());
    // A single one would soon wait most of the time: a backend limits what each costs it.
    let spec = |domain: u16| Spec { persistent: domain.is_multiple_of(2), ..Spec::default() };
    let fronts: Vec<Front> =
        (2..12).map(|domain| Front::connected(&host, domain, spec(domain))).collect();
    let mut before = None;
    for round in 0..10_000u32 {
        let front = &fronts[round as usize % fronts.len()];
        // Every eleventh time with requests under way, and without an announcement.
        let under_way: Vec<_> = match round % 11 {
            0 => (0..8).map(|n| front.queues[0].start_write(8 * n, &[1; PAGE])).collect(),
            _ => Vec::new(),
        };
        match under_way.is_empty() {
            true => front.put("state", 5),
            false => front.queues[0].push(),
        }
        front.put("state", 6);
        await_state(front, 6);
        front.put("state", 1);
        await_state(front, 2);
        front.put("state", 3);
        await_state(front, 4);
        front.put("state", 4);
        // The next connection answers what the last one has left.
        under_way.iter().for_each(|io| assert_eq!(front.end(0, io), OKAY));
        if round % 100 == 0 {
            for front in [front, &good] {
                let fill = (round / 100) as u8;
                assert_eq!(front.write(0, 8, &[fill; PAGE]), OKAY);
                assert!(front.read(0, 8, 8) == (OKAY, vec![fill; PAGE]));
            }
        }
        if round == 1000 {
            before = Some(holdings());
        }
    }
    let before = before.unwrap();
    wait(|| holdings().iter().zip(&before).all(|(now, before)| now <= before));
    for front in fronts.iter().chain([&good]) {
        assert_eq!(host.vbd(front).unwrap().bus.violations, 0);
        front.close();
        wait(|| front.guest.mapped() == 0);
    }
}
