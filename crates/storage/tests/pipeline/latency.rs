//! Latency of requests, by a clock that the test sets.

use std::time::{Duration, Instant};

use crate::guest::{Sent, Site, options};
use storage::Image;
use storage::count::{QueueCounters, RequestType};
use storage::engine::ThreadEngine;

/// A type's number of requests, and their time in all.
fn measured(counters: &QueueCounters, kind: RequestType) -> (u64, Duration) {
    let latency = counters.latency(kind);
    (latency.counts().iter().sum(), Duration::from_nanos(latency.sum()))
}

#[test]
fn latency_is_the_time_between_two_passes_by_type_of_request() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let image = Image::open(&options(file.path())).unwrap();
    let mut site = Site::new(image, 1, Box::new(ThreadEngine::new().unwrap()));
    let counters = site.disks.counters(site.id).remove(0).0;
    let mut now = Instant::now();
    let requests = [
        Sent::read(0, 1),
        Sent::write(0, vec![1; 512]),
        Sent::flush(),
        Sent::range(11, 0, 8, 0),
        Sent::range(13, 0, 8, 0),
    ];
    for (kind, request) in RequestType::ALL.into_iter().zip(requests) {
        let bursts = counters.bursts.get();
        site.send(0, &request, 512).unwrap();
        while counters.bursts.get() == bursts {
            site.worker.run_once(now);
        }
        now += Duration::from_millis(3);
        while site.collect().is_empty() {
            site.worker.run_once(now);
        }
        assert_eq!(measured(&counters, kind), (1, Duration::from_millis(3)), "{kind:?}");
    }
    // 3 ms are more than 2048 us, and no more than 4096 us.
    assert_eq!(counters.latency(RequestType::Read).counts()[12], 1);
}

#[test]
fn what_is_answered_at_once_has_no_latency() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let image = Image::open(&options(file.path())).unwrap();
    let mut site = Site::new(image, 1, Box::new(ThreadEngine::new().unwrap()));
    site.ask(&Sent { kind: 8, sector: 0, data: Vec::new(), room: 20 });
    site.ask(&Sent::read(u64::MAX, 1));
    let counters = site.disks.counters(site.id).remove(0).0;
    assert_eq!(counters.requests.others.get(), 2);
    for kind in RequestType::ALL {
        assert_eq!(measured(&counters, kind), (0, Duration::ZERO), "{kind:?}");
    }
}
