//! Two guests under QEMU or on Xen that stay for many measurements: the demonstration's, for
//! experiments.

use super::point::reach;
use super::qemu::Qemu;
use super::site::{Counts, Site, Used};
use super::xen::Xen;
use super::{ADDRESSES, Args, DemoError, Over, Platform, under};
use crate::cpu::Snapshot;
use crate::experiment::{LabError, Outcome};
use crate::fixture::{Amount, Flow, TrafficEnd, carry, rest};
use crate::program::Program;
use crate::progress::Progress;
use crate::statistics::parts;
use std::path::Path;

/// The guests, and what carries their frames.
pub(crate) struct GuestPair {
    site: Box<dyn Site>,
}

/// What is looked at twice.
struct CounterSnapshot {
    moment: Snapshot,
    counts: Counts,
    daemon: Option<Used>,
}

impl GuestPair {
    /// Boots them, with two virtual CPUs each.
    ///
    /// # Errors
    /// When something is missing or does not start.
    pub(crate) fn start(
        program: &Program,
        platform: Platform,
        over: Over,
        cache: &Path,
        progress: &Progress,
    ) -> Result<GuestPair, DemoError> {
        let args = Args::of(program, cache, platform, over);
        let site: Box<dyn Site> = match platform {
            Platform::Xen => Box::new(Xen::start(&args, over, progress)?),
            Platform::Qemu | Platform::Embedded => {
                let (image, accel) = under(cache)?;
                Box::new(Qemu::start(&args, over, &image, accel, progress)?)
            }
        };
        Ok(GuestPair { site })
    }

    /// Has `streams` run from one to the other over so many queues: `throughput` (Gb/s of frames
    /// that the receiver got), `busiest` (share of its busiest queue, in percent), `busy`, and
    /// where a daemon carries them `daemon` and `frames_per_interrupt`.
    ///
    /// # Errors
    /// When a guest or a tool fails, or the user interrupts.
    pub(crate) fn measure(
        &self,
        queues: u16,
        streams: u16,
        amount: Amount,
    ) -> Result<Outcome, LabError> {
        self.site.set_queues(queues)?;
        let [sender, receiver] = self.site.guests();
        reach(sender)?;
        let (from, to): (&dyn TrafficEnd, &dyn TrafficEnd) = (&sender, &receiver);
        let flow = Flow { from, to, address: ADDRESSES[1].into(), streams, batches: None };
        let carried = carry(&[flow], amount, |_| self.look())?;
        let [before, after] = &carried.looks;
        let counts = after.counts.since(&before.counts);
        let shares = after.moment.since(&before.moment);
        let mut outcome = Outcome::default();
        let bytes: u64 = counts.receiver.iter().map(|queue| queue.rx_bytes).sum();
        outcome.figure("throughput", bytes as f64 * 8.0 / carried.time.as_secs_f64() / 1e9);
        outcome.figure("busy", shares.busy() * 100.0);
        spread(&mut outcome, &counts);
        if let Some((now, then)) = after.daemon.zip(before.daemon) {
            outcome.figure("daemon", now.since(then) * 100.0);
        }
        if let Some(frames) = counts.frames_per_interrupt() {
            outcome.figure("frames_per_interrupt", frames);
        }
        outcome.disturbance(&shares);
        carried.check(&mut outcome);
        if self.site.stats()?.is_some() {
            rest(&mut outcome, || self.site.stats()?.ok_or(LabError::Setting("daemon")))?;
        }
        Ok(outcome)
    }

    fn look(&self) -> Result<CounterSnapshot, LabError> {
        let moment = Snapshot::now(&self.site.processes());
        Ok(CounterSnapshot { moment, counts: self.site.counts()?, daemon: self.site.daemon()? })
    }
}

/// Notes the shares of queues in the bytes.
fn spread(outcome: &mut Outcome, counts: &Counts) {
    let receiver = parts(counts.receiver.iter().map(|queue| queue.rx_bytes));
    outcome.figure("busiest", receiver.iter().copied().fold(0.0, f64::max) * 100.0);
    outcome.list("receiver_queues", receiver);
    outcome.list("sender_queues", parts(counts.sender.iter().map(|queue| queue.tx_bytes)));
}
