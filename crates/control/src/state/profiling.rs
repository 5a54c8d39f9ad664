//! Profiles, as requests ask for them.

use std::time::{Duration, Instant};

use super::DaemonState;
use crate::api::{Profile, Reply};
use crate::natural;
use crate::profile::{GUEST_POLL, GUEST_TIMEOUT, Subject};

impl DaemonState {
    /// The counts so far. Profiling goes on for another while.
    pub(super) fn profile(&self, time: Duration) -> Reply {
        let (number, since) = {
            // Concurrent requests have a number each, and the last one counts.
            let mut lease = self.profiler.lock();
            let number = lease.prolong(time);
            self.fabric.sample(number);
            (number, lease.since())
        };
        let duration_ns = self.profiler.now_ns();
        let workers = self.profiler.workers(&self.fabric);
        let report = |subject: Subject| {
            let queues = self.fabric.counters(subject.port);
            self.profiler.port(subject, &queues, since)
        };
        // Read before guests are waited for, so that all counts belong to the same time.
        let subjects = self.lock().subjects(number);
        let mut ports: Vec<_> = subjects.into_iter().map(report).collect();
        self.await_guests(number);
        for subject in self.lock().subjects(number) {
            if let Some(port) = ports.iter_mut().find(|port| port.name == subject.name) {
                port.guest = subject.guest;
            }
        }
        ports.sort_by(|a, b| natural::compare(&a.name, &b.name));
        Reply::Profile(Box::new(Profile { duration_ns, workers, ports }))
    }

    /// Requests from guests what they have counted, and waits for their answers for a while. The
    /// ports are not locked meanwhile, so that a guest that does not answer delays nobody else.
    fn await_guests(&self, number: u64) {
        let until = Instant::now() + GUEST_TIMEOUT;
        self.lock().request_times(number);
        while self.lock().waiting_for_times(number) > 0 && Instant::now() < until {
            std::thread::sleep(GUEST_POLL);
        }
    }

    /// Ends profiling that no client prolonged.
    pub(super) fn end_profile(&self) {
        let mut lease = self.profiler.lock();
        if lease.ends() {
            self.fabric.sample(0);
            self.lock().request_times(0);
        }
    }
}
