//! Profiles, as requests ask for them.

use std::time::{Duration, Instant};

use super::DaemonState;
use crate::api::{Profile, Reply};
use crate::natural;
use crate::profile::{GUEST_POLL, GUEST_TIMEOUT, Subject};

impl DaemonState {
    /// The counts so far. Prolongs profiling by `time`.
    pub(super) fn profile(&self, time: Duration) -> Reply {
        let (number, since) = {
            // Each concurrent request has its own number, and the last one counts.
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
        // The counts are read before the wait for guests, so that all belong to the same time.
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

    /// Requests the guests' counts, and waits for the answers for a limited time. The ports are not
    /// locked meanwhile, so a guest that does not answer delays no other request.
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
