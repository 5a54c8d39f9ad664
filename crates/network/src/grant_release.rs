//! Passed frames that are released: fetched by their receiver, or revoked.
//!
//! A burst of this worker or a batch of another one that waited for a passed frame then continues.
//! [`passed_grants`](crate::passed_grants) says how long a receiver may take.

use std::time::Instant;

use runtime::{Blocked, Waits};

use crate::count::DropReason;
use crate::passed_grants::Origin;
use crate::pipeline::FramePipeline;
use crate::port::GrantPassing;
use crate::slot::{Leaving, Slot};

impl Slot {
    /// How many of the passed frames, oldest first, are released, and whether the receiver has
    /// fetched them. A receiver that has failed, is being detached, or has used up its credit loses
    /// all of them.
    fn released(&mut self, now: Instant) -> (usize, bool) {
        if !self.is_healthy() || matches!(self.leaving, Some(Leaving::Detach)) {
            self.receiving.passed.revoke();
        } else if !self.receiving.passed.is_revoking() {
            let released = self.on.pair.grant_passing().map(GrantPassing::released);
            match released.unwrap_or(Ok(0)) {
                Ok(0) => {}
                Ok(fetched) => return (fetched, true),
                Err(error) => self.fail(error),
            }
        }
        if !self.is_healthy() || self.receiving.passed.must_revoke(now) {
            self.receiving.passed.revoke();
            let revoked = self.on.pair.grant_passing().map(GrantPassing::revoke);
            return (revoked.unwrap_or(0), false);
        }
        (0, true)
    }
}

impl FramePipeline {
    /// Takes note of released frames, and completes the bursts and batches that waited for them.
    /// True when there were any.
    pub(crate) fn poll_outstanding(&mut self) -> bool {
        let (mut moved, mut next) = (false, 0);
        while let Some(&at) = self.receivers.outstanding.get(next) {
            moved |= self.poll_released(at);
            match self.slots.get(at) {
                Some(slot) if !slot.receiving.passed.is_empty() => next += 1,
                _ => drop(self.receivers.outstanding.swap_remove(next)),
            }
        }
        moved
    }

    /// Adds waits for receivers that have passed frames outstanding. A wait ends when the receiver
    /// fetches frames, or when its credit is used up.
    pub(crate) fn outstanding(&self, now: Instant, waits: &mut Waits) {
        for &at in &self.receivers.outstanding {
            let due = self.slots.get(at).and_then(|slot| slot.receiving.passed.due(now));
            if let Some(due) = due {
                waits.add(Blocked { room: Some(at), until: Some(due) });
            }
        }
    }

    #[cold]
    fn poll_released(&mut self, at: usize) -> bool {
        let now = self.clock.now;
        let Some((count, fetched)) = self.slots.get_mut(at).map(|slot| slot.released(now)) else {
            return false;
        };
        for _ in 0..count {
            let Some(slot) = self.slots.get_mut(at) else { break };
            let Some(grant) = slot.receiving.passed.release() else { break };
            if !fetched && grant.counts {
                slot.on.counters.rx.frames.subtract(1);
                slot.on.counters.rx.bytes.subtract(grant.len.into());
                slot.on.counters.lose(DropReason::NotFetched, 1);
            }
            match grant.origin {
                Origin::Burst { sender, number } => {
                    if let Some(sender) = self.slots.find(sender) {
                        self.part_returned(sender, number);
                    }
                }
                Origin::Batch(number) => self.handoff.released(number),
            }
        }
        count > 0
    }
}
