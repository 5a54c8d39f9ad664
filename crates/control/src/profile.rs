//! Profiling on request.
//!
//! A request makes the workers, and guests that support it, take time stamps for the time of the
//! request. The reply holds the counts so far. The difference of two replies is a profile
//! ([`Profile::since`]). If the client goes away, the stamps end with its lease.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use network::count::QueueCounters;
use network::fabric::Fabric;
use network::step::{Step, Ticks};
use parking_lot::{Mutex, MutexGuard};
use ring::ticks::{self, Ratio};
use switch::PortId;
use xen::netif::guest_times::GuestTimes;

use crate::api::{PortProfile, Profile, QueueFlows, WorkerProfile};
use crate::kind::Kind;

/// The time that guests have to report their counts.
pub const GUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which their answers are checked.
pub const GUEST_POLL: Duration = Duration::from_millis(2);

/// The lease for which time stamps are taken.
#[derive(Default)]
pub struct Lease {
    /// The number of the last request.
    number: u64,
    /// When it ends; `None` when no stamps are taken.
    until: Option<Instant>,
    /// The request with which stamps began to be taken.
    since: u64,
}

/// The state of profiling: the lease, and the length of a tick.
pub struct Profiler {
    start: (u64, Instant),
    ratio: OnceLock<Ratio>,
    lease: Mutex<Lease>,
}

impl Profiler {
    /// No stamps are taken yet.
    pub fn new() -> Self {
        Profiler {
            start: (ticks::now(), Instant::now()),
            ratio: OnceLock::new(),
            lease: Mutex::default(),
        }
    }

    /// The lease, locked while a request is answered.
    pub fn lock(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock()
    }

    /// Nanoseconds in a tick: the same for all replies, so that they can be compared.
    fn ratio(&self) -> Ratio {
        *self.ratio.get_or_init(|| Ratio::since(self.start))
    }

    /// The time of a reply, in nanoseconds since the daemon started.
    pub fn now_ns(&self) -> u64 {
        self.start.1.elapsed().as_nanos() as u64
    }

    /// The counts of all workers.
    pub fn workers(&self, fabric: &Fabric) -> Vec<WorkerProfile> {
        let counters = fabric.worker_counters().iter().enumerate();
        counters
            .map(|(index, worker)| WorkerProfile {
                index,
                steps_ns: self.named(&worker.spent.get(), &Step::ALL),
            })
            .collect()
    }

    /// The counts for the frames that a port received, and its flows since request `since`.
    pub fn port(
        &self,
        subject: Subject,
        queues: &[impl AsRef<QueueCounters>],
        since: u64,
    ) -> PortProfile {
        let Subject { name, kind, guest, .. } = subject;
        let mut port = PortProfile { name, kind, ..PortProfile::default() };
        let mut spent = Ticks::default();
        for charged in queues.iter().map(|queue| &queue.as_ref().charged) {
            port.frames += charged.frames.get();
            port.bytes += charged.bytes.get();
            port.bursts += charged.bursts.get();
            spent.iter_mut().zip(charged.spent.get()).for_each(|(sum, ticks)| *sum += ticks);
            port.flows.push(QueueFlows {
                received: charged.received.count(since),
                sent: charged.sent.count(since),
            });
        }
        // Polling empty rings and sleeping are not charged to frames.
        port.steps_ns = self.named(&spent, &Step::ALL[..Step::Poll as usize]);
        port.guest = guest;
        port
    }

    /// Nanoseconds by the names of steps.
    fn named(&self, ticks: &Ticks, steps: &[Step]) -> BTreeMap<String, u64> {
        let ratio = self.ratio();
        steps
            .iter()
            .zip(ticks)
            .map(|(step, ticks)| (step.name().to_owned(), ratio.nanoseconds(*ticks)))
            .collect()
    }
}

impl Lease {
    /// Prolongs the lease. Returns the number of the request.
    pub fn prolong(&mut self, time: Duration) -> u64 {
        let until = Instant::now() + time;
        self.number += 1;
        if self.until.is_none() {
            self.since = self.number;
        }
        self.until = self.until.max(Some(until));
        self.number
    }

    /// The request with which this, or the last, profiling began.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Whether the lease has ended; true only once.
    pub fn ends(&mut self) -> bool {
        self.until.take_if(|until| *until <= Instant::now()).is_some()
    }
}

/// A port to profile.
pub struct Subject {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its number in the fabric.
    pub port: PortId,
    /// The guest's report.
    pub guest: Option<GuestTimes>,
}

impl Profile {
    /// The counts since `then`. Ports that were added since are counted from zero; those that were
    /// removed are left out.
    pub fn since(&self, then: &Profile) -> Profile {
        let worker = |now: &WorkerProfile| {
            let old = then.workers.iter().find(|old| old.index == now.index);
            let steps_ns = less(&now.steps_ns, old.map(|old| &old.steps_ns));
            WorkerProfile { index: now.index, steps_ns }
        };
        let port =
            |now: &PortProfile| now.since(then.ports.iter().find(|old| old.name == now.name));
        Profile {
            duration_ns: self.duration_ns.saturating_sub(then.duration_ns),
            workers: self.workers.iter().map(worker).collect(),
            ports: self.ports.iter().map(port).collect(),
        }
    }
}

impl PortProfile {
    fn since(&self, then: Option<&PortProfile>) -> PortProfile {
        // Counters that fell belong to another port of the same name.
        let then = then.filter(|then| then.frames <= self.frames && then.bursts <= self.bursts);
        let Some(then) = then else { return self.clone() };
        PortProfile {
            frames: self.frames - then.frames,
            bytes: self.bytes.saturating_sub(then.bytes),
            bursts: self.bursts - then.bursts,
            steps_ns: less(&self.steps_ns, Some(&then.steps_ns)),
            // A guest that did not report at the start has no difference.
            guest: self
                .guest
                .as_ref()
                .zip(then.guest.as_ref())
                .map(|(guest, then)| guest.since(then)),
            ..self.clone()
        }
    }
}

fn less(
    now: &BTreeMap<String, u64>,
    then: Option<&BTreeMap<String, u64>>,
) -> BTreeMap<String, u64> {
    let old = |name: &String| then.and_then(|then| then.get(name)).copied().unwrap_or(0);
    now.iter().map(|(name, time)| (name.clone(), time.saturating_sub(old(name)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_once_and_is_never_shortened() {
        let mut lease = Lease::default();
        assert!(!lease.ends());
        assert_eq!((lease.prolong(Duration::from_secs(3600)), lease.since()), (1, 1));
        assert_eq!((lease.prolong(Duration::ZERO), lease.since()), (2, 1));
        assert!(!lease.ends(), "a shorter request shortens nothing");
        let mut short = Lease::default();
        short.prolong(Duration::ZERO);
        assert!(short.ends() && !short.ends());
        assert_eq!(
            (short.prolong(Duration::ZERO), short.since()),
            (2, 2),
            "profiling starts again"
        );
    }

    #[test]
    fn a_profile_is_the_difference_of_two_replies() {
        let spent = |time: u64| BTreeMap::from([("fetch".to_owned(), time)]);
        let guest = |frames, kernel| Some(GuestTimes { frames, kernel, ..GuestTimes::default() });
        let port = |name: &str, frames, time, guest| PortProfile {
            name: name.into(),
            frames,
            bursts: frames,
            steps_ns: spent(time),
            guest,
            ..PortProfile::default()
        };
        let reply = |duration_ns, ports: Vec<PortProfile>| {
            let workers = vec![WorkerProfile { index: 0, steps_ns: spent(duration_ns / 2) }];
            Profile { duration_ns, workers, ports }
        };
        let then =
            [port("a", 5, 50, guest(4, 40)), port("late", 5, 50, None), port("anew", 9, 90, None)];
        let then = reply(100, [&then[..], &[port("gone", 1, 1, None)]].concat());
        let now = [
            port("a", 7, 80, guest(6, 70)),
            port("late", 6, 60, guest(6, 60)),
            port("anew", 2, 20, None),
        ];
        let now = reply(300, [&now[..], &[port("new", 1, 10, guest(1, 1))]].concat());
        let between =
            [port("a", 2, 30, guest(2, 30)), port("late", 1, 10, None), port("anew", 2, 20, None)];
        let between = [&between[..], &[port("new", 1, 10, guest(1, 1))]].concat();
        assert_eq!(now.since(&then), reply(200, between));
    }
}
