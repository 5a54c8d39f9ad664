//! Receive steering: one worker's table of which queue of a port takes which flows.
//!
//! A flow's hash names one of [`BUCKETS`] buckets, and a table says which queue a bucket goes to.
//! The cost of each bucket is counted, so that a worker notices when streams have hashed unevenly,
//! and then points a bucket to another queue.
//!
//! A bucket must not reorder a flow when it moves: its last frames may still lie in the old queue's
//! ring when the next ones come to the new one. So a bucket changes queues only at rest:
//!
//! - either nothing was sent to the bucket for a whole interval,
//! - or its senders have been made to wait with its next frame until no earlier frame is in flight
//!   to the old queue, and the guest has shown that it took all frames from that queue's ring. This
//!   wait lasts for at least 1 ms. A worker does not see what a guest takes from the rings of other
//!   workers, and asks these.
//!
//! At most one bucket of a port is made to wait at a time. If the wait does not end within 10 ms,
//! or a flood comes, which waits for nothing, the bucket stays with its queue and is left alone for
//! a while. A guest without a CPU may leave frames in its ring for longer than that.
//!
//! Queues come up one after the other, and traffic may begin with the first one. All buckets are
//! then busy on that queue, and would leave it one by one. So where nearly all of the load is on
//! one of several queues, all of that queue's buckets are made to wait together, and are dealt
//! anew. A guest could have its senders wait again and again by queues that come and go, so that
//! happens at most once in [`DEAL_INTERVAL`](crate::route::DEAL_INTERVAL).
//!
//! A worker prefers queues of its own. Other workers' queues are used if it has none, and by
//! buckets that are busy when their queue leaves for another worker, until these buckets are at
//! rest.

mod bucket;
mod rebalance;

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::cost::CHARGE;
use crate::egress::Egress;
use crate::handoff::RingAnswer;
use crate::topology::QueueId;

use bucket::Bucket;
use rebalance::{Moving, Outcome, Rebalance};
pub use rebalance::{OldRing, Progress};

/// Buckets of a port.
const BUCKETS: usize = 256;

/// How often a bucket that is made to wait is polled.
pub const WAIT_INTERVAL: Duration = Duration::from_micros(50);

/// A value in the table for a bucket that is made to wait. No port has this number of queues.
const REBALANCING: u8 = u8::MAX;

/// Less than this in an interval is not worth spreading.
const WORTH: u64 = 1000 * CHARGE;

/// Intervals for which a bucket that has changed queues stays with its queue; the number doubles
/// each time.
const STAY: u32 = 8;

/// The least number of busy buckets per queue at which all are dealt anew together.
const DEALT: usize = 4;

/// A queue that buckets may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxQueue {
    /// The queue.
    pub queue: QueueId,
    /// How frames get there.
    pub egress: Egress,
}

/// The table of one port with several queues.
#[derive(Clone, Debug)]
pub struct IndirectionTable {
    queues: Vec<RxQueue>,
    /// The number of queues at the front that are preferred.
    best: usize,
    table: Box<[u8; BUCKETS]>,
    buckets: Box<[Bucket; BUCKETS]>,
    /// Cost of each bucket's frames in this interval: what is written for each frame lies together.
    charged: Box<[Cell<u64>; BUCKETS]>,
    rebalance: Option<Rebalance>,
    interval: u32,
    /// Idle buckets still have to be distributed evenly.
    uneven: bool,
}

impl IndirectionTable {
    /// A table over these queues, of which the first `best` are preferred. The state of `old` is
    /// kept: busy buckets keep their queues, if those still exist.
    pub fn new(queues: Vec<RxQueue>, best: usize, old: Option<IndirectionTable>) -> Self {
        let best = best.clamp(1, queues.len().max(1));
        let mut table = Box::new([0; BUCKETS]);
        for (bucket, queue) in table.iter_mut().enumerate() {
            let kept = old.as_ref().and_then(|old| old.busy(bucket));
            let kept = kept.and_then(|queue| queues.iter().position(|rx| rx.queue == queue));
            *queue = kept.map_or(even(bucket, best), |at| at as u8);
        }
        let uneven = old.is_some();
        let (buckets, charged, interval) = match old {
            Some(old) => (old.buckets, old.charged, old.interval),
            None => {
                (Bucket::all(Bucket::default()), Box::new([const { Cell::new(0) }; BUCKETS]), 0)
            }
        };
        let rebalance = None;
        IndirectionTable { queues, best, table, buckets, charged, rebalance, interval, uneven }
    }

    /// A table whose flows all go to one queue, and any of which may be busy.
    pub fn all_to(queue: RxQueue) -> Self {
        let table = IndirectionTable::new(vec![queue], 1, None);
        let busy = Bucket { before: 1, ..Bucket::default() };
        IndirectionTable { buckets: Bucket::all(busy), ..table }
    }

    /// The queue of a bucket that is busy.
    fn busy(&self, bucket: usize) -> Option<QueueId> {
        let at = match self.rebalance {
            Some(rebalance) if self.table[bucket] == REBALANCING => rebalance.from,
            _ => self.table[bucket],
        };
        let queue = self.queues.get(usize::from(at))?;
        (!self.is_idle(bucket)).then_some(queue.queue)
    }

    /// Whether the bucket had no frame in this interval and in the last one.
    fn is_idle(&self, bucket: usize) -> bool {
        self.charged[bucket].get() == 0 && self.buckets[bucket].before == 0
    }

    /// Whether a bucket that is busy need not stay with its queue.
    fn may_move(&self, bucket: usize) -> bool {
        self.charged[bucket].get() > 0 && self.buckets[bucket].stays_until <= self.interval
    }

    /// Whether any busy bucket goes to `queue`.
    pub fn uses(&self, queue: QueueId) -> bool {
        (0..BUCKETS).any(|bucket| self.busy(bucket) == Some(queue))
    }

    /// Where a frame with this hash goes, and where the cost of such frames is counted.
    #[inline(always)]
    pub fn egress(&self, hash: u32) -> (&Egress, &Cell<u64>) {
        let bucket = usize::from(IndirectionTable::bucket(hash));
        (self.egress_to(self.table[bucket]), &self.charged[bucket])
    }

    /// The bucket of frames with this hash.
    #[inline(always)]
    pub fn bucket(hash: u32) -> u8 {
        (hash >> 24) as u8
    }

    /// The numbers of the queues that the frames of each bucket go to, and where the cost of these
    /// frames is counted.
    #[inline(always)]
    pub fn buckets(&self) -> (&[u8; BUCKETS], &[Cell<u64>; BUCKETS]) {
        (&self.table, &self.charged)
    }

    /// How frames get to the queue of this number.
    #[inline(always)]
    pub fn egress_to(&self, queue: u8) -> &Egress {
        let queue = self.queues.get(usize::from(queue));
        queue.map_or(&Egress::Rebalancing, |queue| &queue.egress)
    }

    /// Handles a frame, at `now`, of a bucket that changes queues. True: the frame need not wait
    /// any more, and goes where [`egress`](Self::egress) says. `handoff` is the progress of frames
    /// in flight to the old queue.
    pub fn poll_rebalance(
        &mut self,
        now: Instant,
        handoff: Progress<u64, impl FnOnce(u64) -> bool>,
        ring: OldRing<impl FnOnce(u32) -> bool>,
    ) -> bool {
        let Some(rebalance) = self.rebalance.as_mut() else { return true };
        match rebalance.poll(now, handoff, ring) {
            Outcome::Waits => return false,
            Outcome::Moves => {
                let to = rebalance.to;
                self.finish(to);
            }
            Outcome::Stays => self.cancel(),
        }
        true
    }

    /// Lets `ask` ask the worker of a foreign ring, about a position if one is given, when it is
    /// time at `now`. `ask` returns the number of its batch.
    pub fn probe(&mut self, now: Instant, ask: impl FnOnce(Option<u32>) -> Option<u64>) {
        if let Some(rebalance) = &mut self.rebalance
            && let Some(question) = rebalance.question(now)
            && let Some(number) = ask(question)
        {
            rebalance.asked(number, now);
        }
    }

    /// The answer to batch `number`.
    pub fn answered(&mut self, number: u64, answer: RingAnswer) {
        if let Some(rebalance) = &mut self.rebalance {
            rebalance.answered(number, answer);
        }
    }

    /// The old egress of the bucket that changes queues.
    pub fn old_egress(&self) -> Egress {
        self.rebalance.map_or(Egress::Unreachable, |rebalance| self.egress_of(rebalance.from))
    }

    /// Cancels the change of queues, because a frame of the bucket cannot wait. The bucket stays.
    pub fn cancel(&mut self) {
        if let Some(rebalance) = self.rebalance {
            self.finish(rebalance.from);
        }
    }

    /// Ends the change of queues: the bucket goes to queue `at`, and stays there for a while. If
    /// all buckets change queues, and do not stay, they are dealt evenly.
    fn finish(&mut self, at: u8) {
        match self.rebalance.take() {
            Some(Rebalance { buckets: Moving::One(bucket), .. }) => {
                self.table[bucket] = at;
                let bucket = &mut self.buckets[bucket];
                bucket.stays_until = self.interval + (STAY << bucket.moves.min(10));
                bucket.moves += 1;
            }
            Some(Rebalance { buckets: Moving::All, from, .. }) => {
                for (bucket, queue) in self.table.iter_mut().enumerate() {
                    if *queue == REBALANCING {
                        *queue = if at == from { from } else { even(bucket, self.best) };
                    }
                }
            }
            None => {}
        }
    }

    fn egress_of(&self, at: u8) -> Egress {
        self.queues.get(usize::from(at)).map_or(Egress::Unreachable, |queue| queue.egress)
    }

    /// Ends an interval, which must be longer than a bucket's wait. Returns how many buckets begin
    /// to change queues: more than one only if `may_deal`.
    pub fn end_interval(&mut self, may_deal: bool) -> usize {
        self.interval += 1;
        if let Some(rebalance) = self.rebalance {
            // A single bucket without a frame for this long is idle. If all buckets change queues,
            // no frame has come since, and all stay where they were.
            let is_idle = match rebalance.buckets {
                Moving::One(bucket) => self.charged[bucket].get() == 0,
                Moving::All => true,
            };
            let quiet = rebalance.is_unused() && is_idle;
            self.finish(if quiet { rebalance.to } else { rebalance.from });
        }
        let begun = match self.one_sided().filter(|_| may_deal) {
            Some(from) => self.begin_to_deal(from),
            None => usize::from(self.begin_to_move()),
        };
        if std::mem::take(&mut self.uneven) {
            self.distribute_idle();
        }
        for (bucket, charged) in self.buckets.iter_mut().zip(&*self.charged) {
            bucket.before = charged.take();
        }
        begun
    }

    /// Makes one bucket change queues, if that is worthwhile.
    fn begin_to_move(&mut self) -> bool {
        let Some((bucket, to)) = self.advise() else { return false };
        let (buckets, from) = (Moving::One(bucket), self.table[bucket]);
        self.rebalance = Some(Rebalance::new(buckets, from, to));
        self.table[bucket] = REBALANCING;
        true
    }

    /// Marks all buckets of queue `from` to be dealt anew. Returns how many are busy.
    fn begin_to_deal(&mut self, from: u8) -> usize {
        let mut busy = 0;
        for (queue, charged) in self.table.iter_mut().zip(&*self.charged) {
            if *queue == from {
                *queue = REBALANCING;
                busy += usize::from(charged.get() > 0);
            }
        }
        // Any other queue will do: the value only says that the buckets do not stay.
        let to = u8::from(from == 0);
        self.rebalance = Some(Rebalance::new(Moving::All, from, to));
        busy
    }

    /// The one of several queues that has nearly all of this interval's load, in more buckets than
    /// there are queues.
    fn one_sided(&self) -> Option<u8> {
        if self.best < 2 || self.queues.iter().any(|queue| queue.egress == Egress::Moving) {
            return None;
        }
        let costs = self.costs();
        let most = (0..costs.len()).max_by_key(|&at| costs[at])?;
        let rest = costs.iter().sum::<u64>() - costs[most];
        let its = |(charged, queue): &(&Cell<u64>, &u8)| {
            usize::from(**queue) == most && charged.get() > 0
        };
        let busy = self.charged.iter().zip(self.table.iter()).filter(its).count();
        let is_one_sided =
            costs[most] >= WORTH && rest < costs[most] / 4 && busy >= DEALT * self.best;
        is_one_sided.then_some(most as u8)
    }

    /// Distributes idle buckets evenly. Buckets that may have been busy are left until they are
    /// known to be idle.
    fn distribute_idle(&mut self) {
        for bucket in 0..BUCKETS {
            if self.is_idle(bucket) && self.table[bucket] != REBALANCING {
                self.table[bucket] = even(bucket, self.best);
            }
            self.uneven |= self.charged[bucket].get() == 0 && self.buckets[bucket].before > 0;
        }
    }

    /// Cost of each queue's buckets in this interval.
    fn costs(&self) -> Vec<u64> {
        let mut costs = vec![0; self.queues.len()];
        for (charged, &at) in self.charged.iter().zip(self.table.iter()) {
            if let Some(cost) = costs.get_mut(usize::from(at)) {
                *cost += charged.get();
            }
        }
        costs
    }

    /// The bucket that should change queues, and where to.
    fn advise(&self) -> Option<(usize, u8)> {
        if self.queues.iter().any(|queue| queue.egress == Egress::Moving) {
            // A bucket's frames already wait.
            return None;
        }
        let costs = self.costs();
        let (best, rest) = costs.split_at(self.best.min(costs.len()));
        let least = (0..best.len()).min_by_key(|&at| best[at])?;
        if rest.iter().any(|&cost| cost > 0) {
            // A bucket of a queue that has left moves first, whatever its cost.
            let stray = |&bucket: &usize| {
                let at = usize::from(self.table[bucket]);
                (self.best..costs.len()).contains(&at) && self.may_move(bucket)
            };
            return (0..BUCKETS).find(stray).map(|bucket| (bucket, least as u8));
        }
        let most = (0..best.len()).max_by_key(|&at| best[at])?;
        let gap = best[most] - best[least];
        let mean = best.iter().sum::<u64>() / best.len() as u64;
        if gap < WORTH || gap * 4 < mean {
            return None;
        }
        // The gap that is left after the bucket's move. A reduction by a quarter is worthwhile.
        let left = |bucket: &usize| gap.abs_diff(2 * self.charged[*bucket].get());
        let may =
            |&bucket: &usize| usize::from(self.table[bucket]) == most && self.may_move(bucket);
        let bucket = (0..BUCKETS).filter(may).min_by_key(left)?;
        (left(&bucket) * 4 <= gap * 3).then_some((bucket, least as u8))
    }
}

/// The queue, of `queues`, for a bucket as long as no costs are known.
fn even(bucket: usize, queues: usize) -> u8 {
    (bucket * queues / BUCKETS) as u8
}

#[cfg(test)]
mod tests;
