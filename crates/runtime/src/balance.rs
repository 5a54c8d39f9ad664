//! Load balancing: which queue should move from a loaded worker to one that is not.
//!
//! The balancer is a pure function of the loads: it takes what workers and queues have done, and
//! advises at most one move. A queue's share of its worker's time is estimated as its share of the
//! cost of all work there. Three rules keep queues from moving back and forth:
//!
//! - a move must reduce the variance of all workers' loads by at least a quarter;
//! - a worker must be loaded twice in a row before a queue leaves it;
//! - a queue that has moved stays where it is, for twice as long after each move.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::id::QueueId;

/// How often to compare loads.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// A worker that is busy for more than this part of its time is loaded.
const LOADED: f64 = 0.85;

/// The least reduction of the loads' variance, as a fraction, that makes a move worthwhile.
const GAIN: f64 = 0.25;

/// How many times in a row a worker has to be loaded.
const TWICE: u32 = 2;

/// How long a queue stays on its worker after its first move. The effect of a move on the loads
/// cannot be predicted: the queue's frames may now have to be handed off between workers.
const STAY: Duration = Duration::from_secs(8);

/// The longest time that a queue stays after a move.
const LONGEST: Duration = Duration::from_secs(600);

/// A queue, and what its work has cost so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoad {
    /// The queue.
    pub queue: QueueId,
    /// Its worker.
    pub worker: usize,
    /// The cost of all its work since it was attached, as [`crate::drr`] counts it.
    pub cost: u64,
}

/// A queue is to change workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The queue.
    pub queue: QueueId,
    /// Its worker from now on.
    pub to: usize,
}

/// Load and history of a queue.
#[derive(Clone, Copy, Debug)]
struct Known {
    cost: u64,
    moves: u32,
    stays: Option<Instant>,
}

/// A balancer, with the state of earlier intervals.
#[derive(Debug, Default)]
pub struct Balancer {
    then: Option<Instant>,
    /// Each worker's busy time, how often in a row it was loaded, and its load in the last
    /// interval.
    busy: Vec<Duration>,
    streaks: Vec<u32>,
    loads: Vec<f64>,
    queues: HashMap<QueueId, Known>,
}

impl Balancer {
    /// The fraction of the last interval for which each worker was busy, 0 to 1.
    pub fn loads(&self) -> &[f64] {
        &self.loads
    }

    /// Takes every worker's busy time and every queue's cost up to `now`, and returns the move to
    /// make, if any. To be called about every [`INTERVAL`].
    pub fn advise(
        &mut self,
        now: Instant,
        busy: &[Duration],
        queues: &[QueueLoad],
    ) -> Option<Move> {
        let shares = self.measure(now, busy, queues)?;
        let loaded = |&worker: &usize| self.streaks[worker] >= TWICE;
        let from = (0..busy.len())
            .filter(loaded)
            .max_by(|&a, &b| self.loads[a].total_cmp(&self.loads[b]))?;
        let to = (0..busy.len()).min_by(|&a, &b| self.loads[a].total_cmp(&self.loads[b]))?;
        if to == from {
            return None;
        }
        let here = queues.iter().zip(shares).filter(|(queue, _)| queue.worker == from);
        let sum: u64 = here.clone().map(|(_, cost)| cost).sum();
        let free = |queue| {
            self.queues.get(&queue).is_none_or(|known| known.stays.is_none_or(|until| until <= now))
        };
        let load = |cost: u64| self.loads[from] * cost as f64 / sum.max(1) as f64;
        let moved = here.filter(|(queue, cost)| *cost > 0 && free(queue.queue));
        let moved = moved.map(|(queue, cost)| (queue.queue, self.after(from, to, load(cost))));
        let (queue, variance) = moved.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (variance <= (1.0 - GAIN) * variance_of(&self.loads)).then(|| self.decide(now, queue, to))
    }

    /// Cost of each queue's work since the last call; `None` if there was none.
    fn measure(
        &mut self,
        now: Instant,
        busy: &[Duration],
        queues: &[QueueLoad],
    ) -> Option<Vec<u64>> {
        let share = |queue: &QueueLoad| {
            let known = self.queues.get(&queue.queue).map_or(queue.cost, |known| known.cost);
            queue.cost.saturating_sub(known)
        };
        let shares = queues.iter().map(share).collect();
        let known = |queue: &QueueLoad| {
            let known = self.queues.get(&queue.queue);
            let (moves, stays) = known.map_or((0, None), |known| (known.moves, known.stays));
            (queue.queue, Known { cost: queue.cost, moves, stays })
        };
        self.queues = queues.iter().map(known).collect();
        let then = self.then.replace(now);
        let before = std::mem::replace(&mut self.busy, busy.to_vec());
        let time = now.saturating_duration_since(then?).as_secs_f64().max(1e-6);
        let spent =
            busy.iter().zip(&before).map(|(now, then)| now.saturating_sub(*then).as_secs_f64());
        self.loads = spent.map(|spent| (spent / time).min(1.0)).collect();
        self.streaks.resize(busy.len(), 0);
        for (streak, load) in self.streaks.iter_mut().zip(&self.loads) {
            *streak = if *load >= LOADED { streak.saturating_add(1) } else { 0 };
        }
        (before.len() == busy.len()).then_some(shares)
    }

    /// The variance of the loads if `load` went from one worker to another.
    fn after(&self, from: usize, to: usize, load: f64) -> f64 {
        let mut loads = self.loads.clone();
        loads[from] -= load;
        loads[to] += load;
        variance_of(&loads)
    }

    fn decide(&mut self, now: Instant, queue: QueueId, to: usize) -> Move {
        if let Some(known) = self.queues.get_mut(&queue) {
            known.stays = Some(now + (STAY * (1 << known.moves.min(10))).min(LONGEST));
            known.moves += 1;
        }
        // The effect of this move has to be seen before another queue moves.
        self.streaks.fill(0);
        Move { queue, to }
    }
}

fn variance_of(loads: &[f64]) -> f64 {
    let count = loads.len().max(1) as f64;
    let mean = loads.iter().sum::<f64>() / count;
    loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / count
}

#[cfg(test)]
mod tests;
