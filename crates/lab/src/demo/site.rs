//! A place where two guests run, and its counters.

use super::{DemoError, MOST_QUEUES};
use crate::guest::Shell;
use control::api::{PortReport, Stats};
use std::time::Duration;

/// Two guests, and what carries their frames.
pub(crate) trait Site {
    /// The name of what carries the frames.
    fn title(&self) -> &'static str;

    /// The sender and the receiver.
    fn guests(&self) -> [&dyn Shell; 2];

    /// Changes the number of queues that both guests use, while they run.
    fn set_queues(&self, queues: u16) -> Result<(), DemoError>;

    /// The counts so far.
    fn counts(&self) -> Result<Counts, DemoError>;

    /// The CPU time and memory that the daemon has used so far; none where there is no daemon.
    fn daemon(&self) -> Result<Option<Used>, DemoError>;

    /// Everything that the daemon counts; none where there is no daemon.
    fn stats(&self) -> Result<Option<Stats>, DemoError>;

    /// The processes of this machine that all of it runs in.
    fn processes(&self) -> Vec<u32>;

    /// The CPU time that the guests' virtual CPUs have used so far; none where these are no threads
    /// of this machine.
    fn virtual_cpus(&self) -> Option<Duration> {
        None
    }
}

/// CPU time of a process, and when that was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) at: Duration,
}

impl Used {
    /// CPUs used since an earlier sample: 0.5 is half of one.
    pub(crate) fn since(self, earlier: Used) -> f64 {
        let (cpu, time) =
            (self.cpu.saturating_sub(earlier.cpu), self.at.saturating_sub(earlier.at));
        cpu.as_secs_f64() / time.as_secs_f64().max(1e-9)
    }
}

/// Counters of one queue pair; directions are the guest's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueCount {
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_frames: u64,
    pub(crate) rx_interrupts: u64,
}

/// Counters of both guests' queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sender: Vec<QueueCount>,
    pub(crate) receiver: Vec<QueueCount>,
}

impl Counts {
    /// Frames put into both guests for each interrupt that told them so; none where no program
    /// counts those.
    pub(crate) fn frames_per_interrupt(&self) -> Option<f64> {
        let sum = |of: fn(&QueueCount) -> u64| {
            self.sender.iter().chain(&self.receiver).map(of).sum::<u64>()
        };
        let (frames, interrupts) = (sum(|queue| queue.rx_frames), sum(|queue| queue.rx_interrupts));
        (interrupts > 0).then(|| frames as f64 / interrupts as f64)
    }

    /// The counts since an earlier sample.
    pub(crate) fn since(&self, earlier: &Counts) -> Counts {
        let less = |now: &[QueueCount], then: &[QueueCount]| {
            let pairs = now.iter().zip(then);
            let since = pairs.map(|(now, then)| QueueCount {
                tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
                rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
                rx_frames: now.rx_frames.saturating_sub(then.rx_frames),
                rx_interrupts: now.rx_interrupts.saturating_sub(then.rx_interrupts),
            });
            since.collect()
        };
        Counts {
            sender: less(&self.sender, &earlier.sender),
            receiver: less(&self.receiver, &earlier.receiver),
        }
    }
}

/// The queues of a port of the daemon, used or not.
pub(crate) fn queues(port: Option<&PortReport>) -> Vec<QueueCount> {
    let mut queues = vec![QueueCount::default(); usize::from(MOST_QUEUES)];
    for queue in port.into_iter().flat_map(|port| &port.queues) {
        if let Some(place) = queues.get_mut(usize::from(queue.index)) {
            *place = QueueCount {
                tx_bytes: queue.counts.tx_bytes,
                rx_bytes: queue.counts.rx_bytes,
                rx_frames: queue.counts.rx_frames,
                rx_interrupts: queue.counts.rx_interrupts,
            };
        }
    }
    queues
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_time_over_time() {
        let used = |cpu, at| Used { cpu: Duration::from_secs(cpu), at: Duration::from_secs(at) };
        assert_eq!(used(7, 30).since(used(5, 20)), 0.2);
    }
}
