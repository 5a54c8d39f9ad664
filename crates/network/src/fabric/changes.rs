//! Several queue pairs of a port that change at once.
//!
//! A pair that changes, but stays on its worker, is taken out without a new topology: its place is
//! kept. Frames that other workers send there meanwhile are dropped as `port_down`, and its own
//! worker knows of no such queue. All pairs that come, go, or are put back cost one topology
//! together. Workers carry out what they are told before they follow a new topology, so when all
//! follow it, a pair that was put back has its place again.

use runtime::QueueId;
use runtime::pipeline_workers::Returning;
use switch::PortId;

use super::{Fabric, State};
use crate::port::QueuePair;
use crate::slot::Attachment;

/// The change of a pair that was taken out or is new.
pub struct PairChange {
    /// Its number in the port.
    pub index: u16,
    /// The queue that it was; `None`: it is new.
    pub queue: Option<QueueId>,
    /// The pair, and whether others may send to its Rx ring; `None`: it is gone for good.
    pub pair: Option<(Box<dyn QueuePair>, bool)>,
}

/// A pair that is on its way back.
enum Leaving {
    /// No worker had it any more.
    Withdrawn(Box<Attachment>),
    Returning(Returning<Box<Attachment>>),
}

impl Leaving {
    fn wait(self) -> Option<Box<Attachment>> {
        match self {
            Leaving::Withdrawn(attachment) => Some(attachment),
            Leaving::Returning(attachment) => attachment.wait(),
        }
    }
}

impl Fabric {
    /// Takes queue pairs back from their workers for a while, as [`detach`](Self::detach) does.
    /// [`put_back`](Self::put_back) has to follow for each. `None`: the pair is not attached, or
    /// its worker does not have it.
    pub fn take_out(&self, queues: &[QueueId]) -> Vec<Option<Box<dyn QueuePair>>> {
        let mut state = self.lock();
        let mut leave = |&queue: &QueueId| match state.withdrawn.remove(&queue) {
            Some(attachment) => Some(Leaving::Withdrawn(attachment)),
            None => {
                let worker = state.queue(queue)?.worker;
                Some(Leaving::Returning(self.workers.detach(worker, queue)))
            }
        };
        let pairs: Vec<_> = queues.iter().map(&mut leave).collect();
        drop(state);
        pairs.into_iter().map(|pair| pair?.wait().map(|attachment| attachment.pair)).collect()
    }

    /// Hands pairs of `port` to their workers: those that were taken out, and new ones. Returns
    /// the queues that they are. When it returns, all workers have them and know which queues
    /// receive.
    pub fn put_back(&self, port: PortId, changes: Vec<PairChange>) -> Vec<Option<QueueId>> {
        let mut state = self.lock();
        let mut publish = false;
        let change = |change| {
            let (queue, topology) = self.change(&mut state, port, change);
            publish |= topology;
            queue
        };
        let queues = changes.into_iter().map(change).collect();
        if publish {
            let version = self.publish(&state);
            drop(state);
            self.workers.await_version(version);
        }
        queues
    }

    /// Carries out one change. Returns the queue, and whether a new topology is needed.
    fn change(
        &self,
        state: &mut State,
        port: PortId,
        PairChange { index, queue, pair }: PairChange,
    ) -> (Option<QueueId>, bool) {
        let Some((pair, receives)) = pair else {
            let entry = state.ports.get_mut(&port.0);
            let gone = entry.zip(queue).and_then(|(entry, queue)| entry.queues.remove(&queue));
            return (None, gone.is_some_and(|queue| queue.receives));
        };
        let known = queue.and_then(|queue| Some((queue, state.queue(queue)?)));
        let Some((queue, entry)) = known else {
            return (self.give(state, port, index, pair, receives), true);
        };
        let worker = entry.worker;
        entry.receives = receives;
        let Some(attachment) = state.attachment(port, queue, index, pair) else {
            return (None, false);
        };
        self.entrust(state, worker, queue, Box::new(attachment));
        (Some(queue), true)
    }
}
