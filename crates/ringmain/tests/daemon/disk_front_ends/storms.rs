//! A front-end that does nothing but disturb: what it does is its disk's loss, and no other's.

use std::fs::File;

use lab::daemon::Daemon;

use super::front::{Running, connect, daemon, disk, eventually};

/// How often the hostile front-end does what it does.
const TIMES: usize = 2000;

/// Runs a hostile front-end beside an innocent one.
fn beside_an_innocent(attack: impl Fn(&mut Running, &Daemon) + Sync) {
    let folder = tempfile::tempdir().unwrap();
    let images = ["innocent.raw", "hostile.raw"].map(|name| folder.path().join(name));
    for image in &images {
        File::create(image).unwrap().set_len(1 << 20).unwrap();
    }
    let daemon = daemon(&[&images[0], &images[1]]);
    let mut innocent = Running::start(connect(&daemon, 0)).unwrap();
    innocent.read(&daemon);
    let mut hostile = Running::start(connect(&daemon, 1)).unwrap();
    std::thread::scope(|scope| {
        let (attack, daemon) = (scope.spawn(|| attack(&mut hostile, &daemon)), &daemon);
        while !attack.is_finished() {
            innocent.read(daemon);
        }
        attack.join().unwrap();
    });
    innocent.read(&daemon);
    hostile.read(&daemon);
    drop(hostile);
    eventually(&daemon, 1, |disk| disk.peer.is_none());
    for number in 0..2 {
        let report = disk(&daemon, number);
        assert_eq!((report.violations, report.total.failed()), (0, 0), "{report:?}");
        assert_eq!(report.connections, 1);
    }
}

#[test]
fn kicks_without_end_start_nothing() {
    beside_an_innocent(|hostile, daemon| {
        for time in 0..TIMES {
            (0..50).for_each(|_| hostile.vring.kick());
            if time % 100 == 0 {
                hostile.read(daemon);
            }
        }
        assert_eq!(disk(daemon, 1).total.reads as usize, TIMES / 100);
    });
}

#[test]
fn a_ring_that_is_disabled_and_enabled_under_requests_answers_each_once() {
    beside_an_innocent(|hostile, daemon| {
        let (mut asked, mut answered) = (0, 0);
        for time in 0..TIMES {
            if asked - answered < 16 {
                hostile.ask();
                asked += 1;
            }
            hostile.front.enable(0, time % 2 != 0).unwrap();
            answered += hostile.collect();
        }
        hostile.front.enable(0, true).unwrap();
        while answered < asked {
            answered += hostile.collect();
            assert!(disk(daemon, 1).peer.is_some(), "{}", daemon.log());
        }
        assert_eq!((asked, disk(daemon, 1).total.reads as usize), (answered, answered));
    });
}
