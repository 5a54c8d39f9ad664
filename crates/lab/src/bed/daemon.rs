//! What is seen of a daemon and of the machine while streams run.

use std::time::Duration;

use control::api::{Counts, PortReport, Stats};

use crate::cpu::{Moment, Shares};
use crate::daemon::{Daemon, DaemonError};
use crate::experiment::{Outcome, parts};
use crate::guest::Deadline;

/// How long frames may still be under way when everybody has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A moment: what the daemon has counted so far, and who used how much of the machine.
#[derive(Clone, Debug)]
pub struct Look {
    stats: Stats,
    moment: Moment,
}

impl Look {
    /// Now. `others` are processes besides the daemon that are no disturbance; always name the
    /// same.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn now(daemon: &Daemon, others: &[u32]) -> Result<Look, DaemonError> {
        let all: Vec<u32> = std::iter::once(daemon.id()).chain(others.iter().copied()).collect();
        Ok(Look { stats: daemon.stats()?, moment: Moment::now(&all) })
    }

    /// What happened since an earlier look at the same.
    pub fn since(&self, earlier: &Look) -> Seen {
        let port = |now: &PortReport| {
            let then = earlier.stats.ports.iter().find(|then| then.name == now.name);
            less(now, then)
        };
        let ports = self.stats.ports.iter().map(port).collect();
        Seen { ports, shares: self.moment.since(&earlier.moment) }
    }
}

/// What happened between two looks.
#[derive(Clone, Debug)]
pub struct Seen {
    ports: Vec<PortReport>,
    /// CPUs: of the daemon first, then of those that were named.
    pub shares: Shares,
}

impl Seen {
    /// What a port counted.
    pub fn port(&self, name: &str) -> Option<&PortReport> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// Bytes of the frames that these ports received.
    pub fn received<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> u64 {
        let bytes = |port: &PortReport| port.total.rx_bytes + port.total.direct_bytes;
        names.into_iter().filter_map(|name| self.port(name)).map(bytes).sum()
    }

    /// Frames for each interrupt, over all ports that are interrupted.
    pub fn frames_per_interrupt(&self) -> Option<f64> {
        let counts =
            || self.ports.iter().map(|port| &port.total).filter(|counts| counts.rx_interrupts > 0);
        let frames: u64 = counts().map(|counts| counts.rx_frames + counts.direct_frames).sum();
        let interrupts: u64 = counts().map(|counts| counts.rx_interrupts).sum();
        (interrupts > 0).then(|| frames as f64 / interrupts as f64)
    }

    /// CPUs that the daemon used.
    pub fn daemon(&self) -> f64 {
        self.shares.of.first().copied().unwrap_or(0.0)
    }

    /// CPUs that were busy with whatever.
    pub fn busy(&self) -> f64 {
        self.shares.busy()
    }

    /// Notes the figures that most experiments have: `throughput` of what these ports received,
    /// `daemon` and `busy` in percent of a CPU, `frames_per_interrupt`, and what others took.
    pub fn note<'a>(
        &self,
        outcome: &mut Outcome,
        receivers: impl IntoIterator<Item = &'a str>,
        time: Duration,
    ) {
        let bits = self.received(receivers) as f64 * 8.0;
        outcome.figure("throughput", bits / time.as_secs_f64().max(1e-9) / 1e9);
        outcome.figure("daemon", self.daemon() * 100.0);
        outcome.figure("busy", self.busy() * 100.0);
        if let Some(frames) = self.frames_per_interrupt() {
            outcome.figure("frames_per_interrupt", frames);
        }
        outcome.disturbance(&self.shares);
    }

    /// The share of each queue of a port in its bytes; `of` picks the direction.
    pub fn queues(&self, name: &str, of: fn(&Counts) -> u64) -> Vec<f64> {
        parts(
            self.port(name)
                .into_iter()
                .flat_map(|port| &port.queues)
                .map(|queue| of(&queue.counts)),
        )
    }
}

/// A port's counters less what they were.
fn less(now: &PortReport, then: Option<&PortReport>) -> PortReport {
    let mut port = now.clone();
    let Some(then) = then else { return port };
    subtract(&mut port.total, &then.total);
    for queue in &mut port.queues {
        if let Some(then) =
            then.queues.iter().find(|then| (then.index, then.device) == (queue.index, queue.device))
        {
            subtract(&mut queue.counts, &then.counts);
        }
    }
    port
}

fn subtract(now: &mut Counts, then: &Counts) {
    for (now, then) in [
        (&mut now.tx_frames, then.tx_frames),
        (&mut now.tx_bytes, then.tx_bytes),
        (&mut now.rx_frames, then.rx_frames),
        (&mut now.rx_bytes, then.rx_bytes),
        (&mut now.rx_interrupts, then.rx_interrupts),
        (&mut now.direct_frames, then.direct_frames),
        (&mut now.direct_bytes, then.direct_bytes),
    ] {
        *now = now.saturating_sub(then);
    }
}

/// Notes whether the daemon can account for every frame, once nothing is under way any more.
///
/// # Errors
/// When it does not answer.
pub fn at_rest(daemon: &Daemon, outcome: &mut Outcome) -> Result<(), DaemonError> {
    rest(outcome, || daemon.stats())
}

/// The same of any daemon, however it is asked for its counters.
///
/// # Errors
/// When it does not answer.
pub fn rest<E>(
    outcome: &mut Outcome,
    mut stats: impl FnMut() -> Result<Stats, E>,
) -> Result<(), E> {
    let mut deadline = Deadline::new(PATIENCE);
    loop {
        let (came, went) = balance(&stats()?);
        if came == went || deadline.is_over() {
            let seen = format!("{came} frames fetched and copied, {went} delivered and dropped");
            outcome.check("frames conserved", came == went && came > 0, seen);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Frames that came, and what became of them.
fn balance(stats: &Stats) -> (u64, u64) {
    let all = || stats.ports.iter().map(|port| &port.total).chain([&stats.removed]);
    let came = all().map(|counts| counts.tx_frames + counts.copies).sum();
    (came, all().map(|counts| counts.rx_frames + counts.dropped()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, rx_bytes: u64, queues: &[u64]) -> PortReport {
        let counts = |rx_bytes| Counts { rx_bytes, rx_frames: rx_bytes / 100, ..Counts::default() };
        let queue = |(index, bytes): (u16, &u64)| control::api::QueueReport {
            index,
            counts: counts(*bytes),
            ..Default::default()
        };
        let queues = (0..).zip(queues).map(queue).collect();
        PortReport { name: name.into(), total: counts(rx_bytes), queues, ..PortReport::default() }
    }

    #[test]
    fn only_what_happened_meanwhile_counts() {
        let now = less(&port("a", 900, &[500, 400]), Some(&port("a", 300, &[200, 100])));
        let shares = Shares { of: vec![0.5, 0.25], others: 0.125, stolen: 0.0 };
        let seen = Seen { ports: vec![now], shares };
        assert_eq!((seen.received(["a"]), seen.received(["b"])), (600, 0));
        assert_eq!(seen.queues("a", |counts| counts.rx_bytes), [0.5, 0.5]);
        assert_eq!((seen.daemon(), seen.busy()), (0.5, 0.875));
        assert_eq!(seen.frames_per_interrupt(), None);
    }

    #[test]
    fn frames_that_are_lost_without_a_name_are_seen() {
        let mut stats = Stats {
            pid: 0,
            release: String::new(),
            uptime_seconds: 0.0,
            cpu_seconds: 0.0,
            workers: vec![],
            moves: 0,
            ports: vec![port("a", 900, &[])],
            removed: Counts { tx_frames: 10, ..Counts::default() },
        };
        assert_eq!(balance(&stats), (10, 9));
        stats.removed.drops.insert("rx_full".into(), 1);
        assert_eq!(balance(&stats), (10, 10));
    }
}
