//! Queue pairs that change workers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use runtime::QueueId;
use runtime::balance::{Balancer, Move, QueueLoad};

use super::{Fabric, Port, Queue};
use crate::cost::cost;

impl Fabric {
    /// Moves an attached queue pair to another worker, between two of its bursts. No frame is lost
    /// or reordered (see [`runtime::migration`]). Meanwhile the pair's own frames, and frames for
    /// it, wait in their senders' rings. All other changes of the fabric also wait, usually for ten
    /// milliseconds, and hardly longer than [`TIMEOUT`](runtime::migration::TIMEOUT). Returns false
    /// when the pair did not move: it is not attached, or already there, or there is no such
    /// worker, or it could not leave its worker in time.
    pub fn move_queue(&self, queue: QueueId, to: usize) -> bool {
        // The lock is held throughout, so that the pair is not removed meanwhile.
        let mut state = self.lock();
        let can_move =
            |entry: &&mut Queue| !entry.moving && entry.worker != to && to < self.worker_count();
        let Some(entry) = state.queue(queue).filter(can_move) else {
            return false;
        };
        entry.moving = true;
        let from = entry.worker;
        let version = self.publish(&state);
        self.workers.await_version(version);
        let attachment = self.workers.migrate(from, queue).wait();
        let arrived = attachment.is_some();
        if let Some(attachment) = attachment {
            state.set_location(queue, to, true);
            self.workers.attach(to, queue, attachment);
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        // No worker sends to the queue before it has arrived.
        let version = self.publish(&state);
        self.workers.await_version(version);
        state.set_location(queue, if arrived { to } else { from }, false);
        let version = self.publish(&state);
        self.workers.await_version(version);
        arrived
    }

    /// How many queue pairs have changed workers.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// The queue pair that should change workers now ([`move_queue`](Self::move_queue)), as
    /// `balancer` finds. To be asked about every [`INTERVAL`](runtime::balance::INTERVAL).
    pub fn advice(&self, balancer: &mut Balancer) -> Option<Move> {
        let busy: Vec<_> = self
            .counters
            .iter()
            .map(|worker| Duration::from_nanos(worker.run.busy.sum()))
            .collect();
        let pairs = self.pairs();
        balancer.advise(Instant::now(), &busy, &pairs)
    }

    /// All attached pairs.
    fn pairs(&self) -> Vec<QueueLoad> {
        let state = self.lock();
        let queues = state
            .ports
            .values()
            .flat_map(|port| port.queues.iter().map(move |(&id, queue)| (port, id, queue)));
        let pair = |(port, id, queue): (&Port, QueueId, &Queue)| {
            let count = port.counters.get(usize::from(queue.index))?;
            let cost = cost(count.tx.frames.get() as usize, count.tx.bytes.get());
            Some(QueueLoad { queue: id, worker: queue.worker, cost })
        };
        queues.filter_map(pair).collect()
    }
}
