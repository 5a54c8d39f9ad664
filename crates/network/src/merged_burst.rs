//! Bursts of several queues whose grant copies are made together.
//!
//! The hypervisor copies for Xen guests, and each call has a fixed cost, as each event sent to a
//! guest has. A worker that serves many queues with a few frames each would pay that cost for every
//! burst. So the copies of a small burst wait for those of the queues that are served after it in
//! the same round. One call makes all of them, once there are [`ENOUGH`], or when the round ends.
//! Then each ring is published once, whatever the number of bursts that touched it. A burst that
//! has many copies itself saves nothing by waiting, and does not wait: Linux passes at most 16
//! copies of a call to the hypervisor at a time. Batches that other workers have handed over at the
//! beginning of a round are merged in the same way.
//!
//! Until its copies are made, a merged burst is in flight: its sender gets no response, and no ring
//! that it touched is published ([`FramePipeline::publish`] makes the copies first). Queues come
//! and leave only while no copy waits: before a round, or between its batches and its bursts.
//!
//! A guest whose grants fail loses its own frames and nothing else: each failed copy names the
//! sender and the receiver of its frame.

use crate::pipeline::FramePipeline;
use crate::receivers::MergedBurst;

/// With so many copies, a call's own cost does not matter.
const ENOUGH: usize = 64;

impl FramePipeline {
    /// Whether the copies of the present burst or batch wait for those of other queues. Times of a
    /// profile belong to single bursts, which are not merged meanwhile.
    #[inline]
    pub(crate) fn may_merge(&self) -> bool {
        let waiting = self.receivers.grant_copies.waiting();
        waiting > self.receivers.earlier_copies && waiting < ENOUGH && !self.profiler.is_on()
    }

    /// Completes the merged bursts, and gives back the merged batches, whose copies have been made.
    /// The bursts' queues are published with the receivers.
    #[inline(never)]
    pub(crate) fn complete_merged(&mut self) {
        for (worker, batch) in self.receivers.merged_batches.drain(..) {
            self.handoff.delivered(worker, batch);
        }
        for MergedBurst { slot: at, number } in self.receivers.merged.drain(..) {
            let Some(slot) = self.slots.get_mut(at) else { continue };
            let complete = slot.sending.in_flight.returned(number);
            if !slot.is_healthy() || complete == 0 {
                continue;
            }
            slot.on.pair.complete(complete);
            if !std::mem::replace(&mut slot.dirty, true) {
                self.receivers.dirty.push(at);
            }
        }
    }

    /// Makes the copies that wait, and publishes: at the end of a round, and of its batches.
    #[inline]
    pub(crate) fn publish_merged(&mut self) {
        if !self.receivers.grant_copies.is_empty() {
            self.publish_waiting();
        }
    }

    #[inline(never)]
    fn publish_waiting(&mut self) {
        // There is no present batch, and failed queues have been stopped.
        let _ = self.publish();
    }
}
