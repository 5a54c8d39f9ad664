//! Disks that may do only so much, by a clock that the test sets.

use std::time::{Duration, Instant};

use crate::guest::{SECTOR, Sent, Site, options};
use runtime::token_bucket::Rate;
use storage::Image;
use storage::count::QueueCounters;
use storage::engine::ThreadEngine;
use storage::limits::DiskRates;

/// A disk of so many queues with these limits, and the time from which on they hold.
fn site(queues: u16, rates: DiskRates) -> (tempfile::NamedTempFile, Site, Instant) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let image = Image::open(&options(file.path())).unwrap();
    let mut site = Site::new(image, queues, Box::new(ThreadEngine::new().unwrap()));
    limit(&mut site, rates);
    (file, site, Instant::now())
}

/// Changes the limits of a disk in service.
fn limit(site: &mut Site, rates: DiskRates) {
    site.disk.set_limits(rates);
    let disks = site.disks.clone();
    site.worker.run_while(|| disks.follow_limits());
}

fn requests(per_second: u64, burst: u64) -> DiskRates {
    DiskRates { requests: Some(Rate { per_second, burst }), bytes: None }
}

fn bytes(per_second: u64, burst: u64) -> DiskRates {
    DiskRates { requests: None, bytes: Some(Rate { per_second, burst }) }
}

fn sum(site: &Site, counter: impl Fn(&QueueCounters) -> u64) -> u64 {
    site.disks.counters(site.id).iter().map(|(queue, _)| counter(queue)).sum()
}

/// Requests that have begun.
fn begun(site: &Site) -> u64 {
    sum(site, |it| {
        let ranges = it.requests.discards.get() + it.requests.zeroes.get();
        it.requests.reads.get()
            + it.requests.writes.get()
            + it.requests.flushes.get()
            + it.requests.others.get()
            + ranges
    })
}

/// What has begun after the worker has looked at all queues at this time.
fn begun_at(site: &mut Site, now: Instant) -> u64 {
    (0..4).for_each(|_| _ = site.worker.run_once(now));
    begun(site)
}

#[test]
fn requests_beyond_the_rate_wait_in_their_rings_and_none_is_lost() {
    for queues in [1, 3] {
        let (_file, mut site, start) = site(queues, requests(10, 4));
        for number in 0..12 {
            site.send(number % usize::from(queues), &Sent::read(0, 1), 512).unwrap();
        }
        let at = |millis| start + Duration::from_millis(millis);
        let times =
            [(0, 4), (99, 4), (100, 5), (199, 5), (350, 7), (700, 11), (799, 11), (800, 12)];
        for (millis, want) in times {
            assert_eq!(begun_at(&mut site, at(millis)), want, "{queues} queues, {millis} ms");
        }
        assert_eq!(site.answers(12).len(), 12);
        assert!(sum(&site, |queue| queue.limited.get()) > 0);
    }
}

#[test]
fn every_type_of_request_counts_whether_it_succeeds_or_not() {
    let (_file, mut site, start) = site(1, requests(1, 5));
    let refused = Sent::read(u64::MAX, 1);
    let serial = Sent { kind: 8, sector: 0, data: Vec::new(), room: 20 };
    let all = [refused, serial, Sent::flush(), Sent::range(11, 0, 8, 0), Sent::read(0, 1)];
    for request in all.iter().chain([&Sent::read(0, 1)]) {
        site.send(0, request, 512).unwrap();
    }
    assert_eq!(begun_at(&mut site, start), 5);
    assert_eq!(begun_at(&mut site, start + Duration::from_secs(1)), 6);
}

#[test]
fn bytes_are_those_that_are_read_written_and_zeroed() {
    let cases = [
        (Sent::read(0, 8), 1),
        (Sent::write(0, vec![1; 8 * SECTOR]), 1),
        (Sent::range(13, 0, 8, 0), 1),
        (Sent::range(11, 0, 8, 0), 4),
        (Sent::flush(), 4),
    ];
    for (request, want) in cases {
        // Whatever was there before: a full burst, and hardly anything more.
        let (_file, mut site, start) = site(1, bytes(1, 4096));
        for _ in 0..4 {
            site.send(0, &request, 512).unwrap();
        }
        assert_eq!(begun_at(&mut site, start), want, "{request:?}");
    }
}

#[test]
fn a_request_that_is_longer_than_the_burst_is_paid_for() {
    let (_file, mut site, start) = site(1, bytes(8192, 512));
    for _ in 0..3 {
        site.send(0, &Sent::read(0, 32), 1 << 20).unwrap();
    }
    let times = [(0, 1), (1990, 1), (2010, 2), (3990, 2), (4010, 3)];
    for (millis, want) in times {
        let now = start + Duration::from_millis(millis);
        assert_eq!(begun_at(&mut site, now), want, "{millis} ms");
    }
}

/// Reads as fast as it may for a second, in steps of 100 us.
#[test]
fn over_time_as_much_is_done_as_is_allowed() {
    let (rate, burst, request) = (1_000_000, 8192, 4096);
    let (_file, mut site, start) = site(2, bytes(rate, burst));
    let mut answered = 0;
    for step in 0..=10_000u32 {
        let now = start + step * Duration::from_micros(100);
        while site.send(step as usize % 2, &Sent::read(0, 8), 4096).is_some() {}
        site.worker.run_once(now);
        answered += site.collect().len() as u64;
        // A request is done at the time at which it began.
        while answered < begun(&site) {
            site.worker.run_once(now);
            answered += site.collect().len() as u64;
        }
    }
    let read = sum(&site, |queue| queue.requests.read_bytes.get());
    assert!(read <= rate + burst + request, "{read}");
    assert!(read >= rate, "{read}");
}

#[test]
fn limits_change_in_service_and_begin_with_a_full_burst() {
    let (_file, mut site, start) = site(2, requests(1, 1));
    for number in 0..12 {
        site.send(number % 2, &Sent::read(0, 1), 512).unwrap();
    }
    assert_eq!(begun_at(&mut site, start), 1);
    limit(&mut site, requests(1, 3));
    let now = Instant::now();
    assert_eq!(begun_at(&mut site, now), 1 + 3);
    limit(&mut site, DiskRates::default());
    let now = Instant::now();
    assert_eq!(begun_at(&mut site, now), 12);
}

#[test]
fn queues_of_a_disk_take_turns_whatever_they_ask_for() {
    for rates in [requests(10, 2), bytes(40_960, 1024)] {
        let (_file, mut site, start) = site(3, rates);
        for _ in 0..16 {
            for (queue, sectors) in [(0, 1), (1, 64), (2, 1)] {
                site.send(queue, &Sent::read(0, sectors), 512).unwrap();
            }
        }
        let reads = |site: &Site| -> Vec<u64> {
            let queues = site.disks.counters(site.id);
            queues.iter().map(|(queue, _)| queue.requests.reads.get()).collect()
        };
        for step in 0..4000 {
            site.worker.run_once(start + Duration::from_millis(5 * step));
            if reads(&site).iter().any(|begun| *begun >= 14) {
                break;
            }
        }
        let begun = reads(&site);
        assert!(begun.iter().any(|begun| *begun >= 14), "{begun:?}");
        assert!(begun.iter().all(|begun| *begun >= 8), "{begun:?} with {rates:?}");
    }
}
