//! Which queue is served next: deficit round robin over classes, and over the queues of each class.
//!
//! The work that a pipeline does for a queue is counted in *cost*. In each round, every class that
//! has work gets a *quantum* of cost. An unused rest is kept for the next round while the class has
//! more to do, and forgotten when it has not. Cost beyond the quantum becomes a debt. So backlogged
//! classes get equal shares of their worker, whatever their units of work cost, and a class that
//! has little to do waits for less than two quanta of each of the others.
//!
//! Shares are a class's, not a queue's: a guest gains nothing by having more queues, or by filling
//! more of them. Its queues are served one after the other within its share: a queue is served,
//! over several rounds if need be, until it has used a quantum or has nothing more; then the next
//! queue follows. If a class is alone on its worker, each of its queues is served once a round.

use std::collections::VecDeque;

use crate::id::ClassId;
use crate::pipeline::Served;

/// The cost, in quanta, that a class which is alone may use in one round. The bound limits the wait
/// of a class that gets work meanwhile.
const ALONE: u64 = 4;

/// A class and those of its queues that have something.
struct Class {
    id: ClassId,
    /// Their slots; the first is the next to be served.
    queues: VecDeque<usize>,
    /// The unused part of the class's share; a debt, if negative.
    credit: i64,
    /// The part of the share that the first queue has used.
    used: u64,
}

/// The state of a round: the class that is being served, and how many of its queues are left.
#[derive(Debug)]
pub struct Round {
    class: usize,
    left: usize,
    alone: bool,
    /// One of the queues served so far is likely to have more.
    more: bool,
    /// A class was passed over because of its debt: there is work though nothing was done.
    pub in_debt: bool,
}

/// The queues that a worker polls, and the order in which they are served.
pub struct DrrScheduler {
    classes: Vec<Class>,
    quantum: u64,
}

impl DrrScheduler {
    /// A scheduler without queues, in which each class gets `quantum` a round.
    pub fn new(quantum: u64) -> Self {
        DrrScheduler { classes: Vec::new(), quantum }
    }

    /// The least credit that is worth a burst. Less than this is kept for the next round.
    fn least(&self) -> u64 {
        self.quantum / 2
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// The slots of all queues.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.classes.iter().flat_map(|class| class.queues.iter().copied())
    }

    /// Adds the queue in slot `at`, which is not there yet, behind the others of its class.
    pub fn push(&mut self, id: ClassId, at: usize) {
        match self.classes.iter_mut().find(|class| class.id == id) {
            Some(class) => class.queues.push_back(at),
            None => {
                let queues = VecDeque::from([at]);
                self.classes.push(Class { id, queues, credit: 0, used: 0 });
            }
        }
    }

    /// Takes out the queue in slot `at`, if it is there. Not to be called within a round.
    pub fn remove(&mut self, at: usize) {
        for class in &mut self.classes {
            if class.queues.front() == Some(&at) {
                class.used = 0;
            }
            class.queues.retain(|&other| other != at);
        }
        self.classes.retain(|class| !class.queues.is_empty());
    }

    /// Begins a round.
    #[inline]
    pub fn round(&mut self) -> Round {
        let alone = self.classes.len() == 1;
        let mut round = Round { class: 0, left: 0, alone, more: false, in_debt: false };
        self.enter(&mut round);
        round
    }

    /// The slot of the next queue to serve, and the cost that it may use. `None`: the round is
    /// over. A call of [`served`](Self::served) must follow.
    #[inline]
    pub fn next(&mut self, round: &mut Round) -> Option<(usize, u64)> {
        while let Some(class) = self.classes.get(round.class) {
            if round.left > 0 {
                if round.alone {
                    return class.queues.front().map(|&at| (at, ALONE * self.quantum));
                }
                if class.credit >= self.least() as i64 {
                    return class.queues.front().map(|&at| (at, class.credit as u64));
                }
                round.in_debt = true;
            }
            round.class += 1;
            self.enter(round);
        }
        None
    }

    /// Notes that the queue that [`next`](Self::next) named was served. `stays`: it is still
    /// polled.
    #[inline]
    pub fn served(&mut self, round: &mut Round, served: Served, stays: bool) {
        let Some(class) = self.classes.get_mut(round.class) else { return };
        class.credit -= served.cost as i64;
        class.used += served.cost;
        if stays && served.more && class.used < self.quantum && !round.alone {
            return;
        }
        class.used = 0;
        if let Some(at) = class.queues.pop_front()
            && stays
        {
            class.queues.push_back(at);
        }
        round.more |= served.more;
        round.left -= 1;
        if round.left > 0 {
            return;
        }
        if !round.more {
            // No queue of the class has anything more.
            class.credit = class.credit.min(0);
        }
        self.leave(round);
    }

    /// Goes on to the next class; one without queues is forgotten.
    fn leave(&mut self, round: &mut Round) {
        if self.classes.get(round.class).is_some_and(|class| class.queues.is_empty()) {
            self.classes.remove(round.class);
        } else {
            round.class += 1;
        }
        self.enter(round);
    }

    /// Gives the class that is served next its quantum.
    fn enter(&mut self, round: &mut Round) {
        let Some(class) = self.classes.get_mut(round.class) else { return };
        class.credit = if round.alone { 0 } else { class.credit + self.quantum as i64 };
        (round.left, round.more) = (class.queues.len(), false);
    }
}

#[cfg(test)]
mod tests;
