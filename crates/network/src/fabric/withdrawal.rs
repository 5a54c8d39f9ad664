//! All queue pairs, taken from their workers at once, for another process that goes on with their
//! rings.
//!
//! Senders to a queue wait from the start, as they do for a queue that changes workers
//! ([`runtime::migration`]): frames stay in their senders' rings, where the other process finds
//! them. Frames in flight are delivered first, so nothing is lost. A receiver that takes its frames
//! as slowly as it may could prevent that for ever, so frames for such receivers can be dropped
//! instead ([`InFlight::Drop`]).

use std::sync::Arc;

use runtime::QueueId;

use super::{Fabric, State};
use crate::slot::Attachment;

/// The port of a pair that could not leave its worker in time: a receiver takes its frames too
/// slowly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept(pub Arc<str>);

/// What happens to frames in flight whose receivers are full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlight {
    /// They wait for their receivers, as at other times.
    Wait,
    /// They are dropped, and counted as lost to a full receiver.
    Drop,
}

impl Fabric {
    /// Takes all queue pairs from their workers. [`take_out`](Self::take_out) finds them; pairs
    /// that are put back, or come, wait until [`release`](Self::release) gives all to workers
    /// together.
    ///
    /// # Errors
    /// When a pair cannot leave its worker in time. In that case all pairs stay.
    pub fn withdraw(&self, in_flight: InFlight) -> Result<(), Kept> {
        let mut state = self.lock();
        state.holding = true;
        let mut queues = Vec::new();
        for port in state.ports.values_mut() {
            port.accounts.wait.suspend(in_flight == InFlight::Drop);
            for (&id, queue) in &mut port.queues {
                queue.moving = true;
                queues.push((id, queue.worker, Arc::clone(&port.name)));
            }
        }
        let version = self.publish(&state);
        self.workers.await_version(version);
        let leaving: Vec<_> =
            queues.iter().map(|(id, worker, _)| self.workers.withdraw(*worker, *id)).collect();
        let mut kept = None;
        for ((id, _, name), leaving) in queues.into_iter().zip(leaving) {
            match leaving.wait() {
                Some(attachment) => drop(state.withdrawn.insert(id, attachment)),
                None => kept = Some(Kept(name)),
            }
        }
        kept.map_or(Ok(()), |kept| {
            self.give_back(&mut state);
            Err(kept)
        })
    }

    /// Holds back new pairs until [`release`](Self::release) gives all to their workers together,
    /// so that no frame is dropped because its receiver is still to come.
    ///
    /// Returns once all workers have begun. A worker that was just started measures what sleep
    /// costs, for some milliseconds, and takes no queue before.
    pub fn hold(&self) {
        let mut state = self.lock();
        state.holding = true;
        let version = self.publish(&state);
        self.workers.await_version(version);
    }

    /// Gives all pairs that wait to their workers.
    pub fn release(&self) {
        self.give_back(&mut self.lock());
    }

    /// Gives a pair to its worker, unless pairs wait.
    pub(super) fn entrust(
        &self,
        state: &mut State,
        worker: usize,
        queue: QueueId,
        attachment: Box<Attachment>,
    ) {
        match state.holding {
            true => drop(state.withdrawn.insert(queue, attachment)),
            false => self.workers.attach(worker, queue, attachment),
        }
    }

    fn give_back(&self, state: &mut State) {
        state.holding = false;
        for (id, attachment) in std::mem::take(&mut state.withdrawn) {
            let Some(queue) = state.queue(id) else { continue };
            self.workers.attach(queue.worker, id, attachment);
        }
        // No worker sends to a pair before it has arrived.
        let version = self.publish(state);
        self.workers.await_version(version);
        for port in state.ports.values_mut() {
            port.accounts.wait.suspend(false);
            port.queues.values_mut().for_each(|queue| queue.moving = false);
        }
        let version = self.publish(state);
        self.workers.await_version(version);
    }
}
