//! Who wants to know where time goes, and until when; and what they are told.
//!
//! A request has the workers, and the guests that can, take time stamps from then on, for as long
//! as it says; the reply is what they have counted so far. Two replies make a profile
//! ([`Profile::since`]). If the asker goes away, the stamps end by themselves.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use network::count::QueueCounters;
use network::fabric::Fabric;
use network::stage_profiler::{Step, Ticks};
use ring::ticks::{self, Ratio};
use switch::PortId;
use xen::netif::guest_times::GuestTimes;

use crate::api::{PortProfile, Profile, QueueFlows, WorkerProfile};

/// How long to wait for guests to say what they have counted.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The present request.
#[derive(Default)]
pub struct UplinkQueue {
    /// Its number; that of the last one, when there is none.
    number: u64,
    /// Until when stamps are taken.
    until: Option<Instant>,
    /// The request with which stamps began to be taken.
    since: u64,
}

/// Who wants to know, and how long a tick is.
pub struct Profiler {
    start: (u64, Instant),
    ratio: OnceLock<Ratio>,
    lease: Mutex<UplinkQueue>,
}

impl Profiler {
    /// Nobody yet.
    pub fn new() -> Self {
        Profiler {
            start: (ticks::now(), Instant::now()),
            ratio: OnceLock::new(),
            lease: Mutex::default(),
        }
    }

    /// Held while one request is answered.
    pub fn lock(&self) -> MutexGuard<'_, UplinkQueue> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for all replies, so that they can be compared.
    fn ratio(&self) -> Ratio {
        *self.ratio.get_or_init(|| Ratio::since(self.start))
    }

    /// Moment of a reply, in nanoseconds since some other.
    pub fn moment(&self) -> u64 {
        self.start.1.elapsed().as_nanos() as u64
    }

    /// What all workers have counted.
    pub fn workers(&self, fabric: &Fabric) -> Vec<WorkerProfile> {
        let counters = fabric.worker_counters().iter().enumerate();
        counters
            .map(|(index, worker)| WorkerProfile {
                index,
                spent: self.named(&worker.spent.get(), &Step::ALL),
            })
            .collect()
    }

    /// What was counted for the frames that a port received, and since request `since` of its
    /// flows.
    pub fn port(
        &self,
        subject: Subject,
        queues: &[impl AsRef<QueueCounters>],
        since: u64,
    ) -> PortProfile {
        let Subject { name, kind, guest, .. } = subject;
        let mut port = PortProfile { name, kind: kind.to_owned(), ..PortProfile::default() };
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
        // Nobody's frames are looked or slept for.
        port.spent = self.named(&spent, &Step::ALL[..Step::Look as usize]);
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

impl UplinkQueue {
    /// Prolongs it; the number of the request.
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

    /// Whether it has come to its end, once.
    pub fn ends(&mut self) -> bool {
        self.until.take_if(|until| *until <= Instant::now()).is_some()
    }
}

/// Where to find what is charged to a port, and what its guest said.
pub struct Subject {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// Its number in the fabric.
    pub port: PortId,
    /// What its guest said.
    pub guest: Option<GuestTimes>,
}

impl Profile {
    /// What was counted since `then`. Ports that came meanwhile are counted from zero; those that
    /// went are not there.
    pub fn since(&self, then: &Profile) -> Profile {
        let worker = |now: &WorkerProfile| {
            let old = then.workers.iter().find(|old| old.index == now.index);
            WorkerProfile { index: now.index, spent: less(&now.spent, old.map(|old| &old.spent)) }
        };
        let port =
            |now: &PortProfile| now.since(then.ports.iter().find(|old| old.name == now.name));
        Profile {
            nanoseconds: self.nanoseconds.saturating_sub(then.nanoseconds),
            workers: self.workers.iter().map(worker).collect(),
            ports: self.ports.iter().map(port).collect(),
        }
    }
}

impl PortProfile {
    fn since(&self, then: Option<&PortProfile>) -> PortProfile {
        // One of the same name that has begun anew meanwhile has less than there was.
        let then = then.filter(|then| then.frames <= self.frames && then.bursts <= self.bursts);
        let Some(then) = then else { return self.clone() };
        PortProfile {
            frames: self.frames - then.frames,
            bytes: self.bytes.saturating_sub(then.bytes),
            bursts: self.bursts - then.bursts,
            spent: less(&self.spent, Some(&then.spent)),
            // One that has not said where it began says nothing.
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
    fn a_lease_ends_once_and_is_only_prolonged() {
        let mut lease = UplinkQueue::default();
        assert!(!lease.ends());
        assert_eq!((lease.prolong(Duration::from_secs(3600)), lease.since()), (1, 1));
        assert_eq!((lease.prolong(Duration::ZERO), lease.since()), (2, 1));
        assert!(!lease.ends(), "another wants to know for longer");
        let mut short = UplinkQueue::default();
        short.prolong(Duration::ZERO);
        assert!(short.ends() && !short.ends());
        assert_eq!((short.prolong(Duration::ZERO), short.since()), (2, 2), "it begins anew");
    }

    #[test]
    fn a_profile_is_what_lies_between_two_replies() {
        let spent = |time: u64| BTreeMap::from([("fetch".to_owned(), time)]);
        let guest = |frames, kernel| Some(GuestTimes { frames, kernel, ..GuestTimes::default() });
        let port = |name: &str, frames, time, guest| PortProfile {
            name: name.into(),
            frames,
            bursts: frames,
            spent: spent(time),
            guest,
            ..PortProfile::default()
        };
        let reply = |nanoseconds, ports: Vec<PortProfile>| {
            let workers = vec![WorkerProfile { index: 0, spent: spent(nanoseconds / 2) }];
            Profile { nanoseconds, workers, ports }
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
