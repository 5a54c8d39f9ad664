//! Whose turn it is: deficit round robin over ports, and over the queues of each port.
//!
//! What a turn costs its worker is counted in *cost*: a frame's bytes and [`CHARGE`] more, and
//! [`MISS`] for one of which the flow cache knows nothing. In each round every port that has
//! something gets [`QUANTUM`] of it. What is left is kept for the next round while the port has
//! more to send and forgotten when it has not, and what a port used too much is a debt.
//! So ports that are backlogged get equal shares of their worker, whatever the size of their
//! frames, and one that sends little waits for less than two quanta of each of the others.
//!
//! Shares are a port's, not a queue's: a guest gains nothing by having more queues, or by filling
//! more of them. Its queues take turns within its share: one goes on, over rounds, until it has
//! used as much as a share or has nothing more, and then comes the next. A port that is alone on
//! its worker has nobody to share with: each of its queues has a turn each round.

use std::collections::VecDeque;

use switch::PortId;

use crate::burst::BURST;

/// What a frame costs besides its bytes, in bytes whose copy takes as long.
pub const CHARGE: u64 = 2048;

/// What it costs to ask the switch about a frame. So a guest whose frames are each of a flow of
/// their own pays for it.
pub const MISS: u64 = 2 * CHARGE;

/// A port's share of a round: a full burst of frames as long as an Ethernet's.
pub const QUANTUM: u64 = BURST as u64 * (CHARGE + 1514);

/// Less than this is not worth a burst: it is kept for the next round. More than the longest frame
/// costs, so that whoever has a turn can use it.
const LEAST: u64 = QUANTUM / 2;

/// What a turn of a port may cost that is alone: others may come meanwhile.
const ALONE: u64 = 4 * QUANTUM;

const _: () = assert!(LEAST > CHARGE + crate::burst::MAX_FRAME as u64);

/// What so many frames of so many bytes cost.
#[inline]
pub fn cost(frames: usize, bytes: u64) -> u64 {
    CHARGE * frames as u64 + bytes
}

/// One turn of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// What it may cost.
    pub allowance: u64,
    /// Bytes of the frames that were fetched.
    pub bytes: u64,
    /// What it has cost.
    pub cost: u64,
    /// The queue is likely to have more: its burst was as long as it could be, and all of it is
    /// done.
    pub more: bool,
}

/// A port and its queues that have something.
struct PortClass {
    port: PortId,
    /// Their slots; the first is the next that has a turn.
    queues: VecDeque<usize>,
    /// What is left of its share; a debt, if negative.
    credit: i64,
    /// What the first queue has spent of it.
    spent: u64,
}

/// Which class has its turn in a round, and how many of its queues have not had theirs.
#[derive(Debug)]
pub struct Round {
    class: usize,
    left: usize,
    alone: bool,
    /// One of those that have had theirs is likely to have more.
    more: bool,
    /// A port had to sit out because of its debt: there is work though nothing was done.
    pub owed: bool,
}

/// The queues that a worker looks at, and the order of their turns.
#[derive(Default)]
pub struct DrrScheduler {
    classes: Vec<PortClass>,
}

impl DrrScheduler {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// The slots of all queues.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.classes.iter().flat_map(|class| class.queues.iter().copied())
    }

    /// Adds the queue in slot `at`, which is not there yet, behind the others of its port.
    pub fn push(&mut self, port: PortId, at: usize) {
        match self.classes.iter_mut().find(|class| class.port == port) {
            Some(class) => class.queues.push_back(at),
            None => self.classes.push(PortClass {
                port,
                queues: VecDeque::from([at]),
                credit: 0,
                spent: 0,
            }),
        }
    }

    /// Takes out the queue in slot `at`, if it is there. Not to be called within a round.
    pub fn remove(&mut self, at: usize) {
        for class in &mut self.classes {
            if class.queues.front() == Some(&at) {
                class.spent = 0;
            }
            class.queues.retain(|&other| other != at);
        }
        self.classes.retain(|class| !class.queues.is_empty());
    }

    /// Begins a round.
    pub fn round(&mut self) -> Round {
        let mut round =
            Round { class: 0, left: 0, alone: self.classes.len() == 1, more: false, owed: false };
        self.enter(&mut round);
        round
    }

    /// The slot of the next queue that has a turn, and what that may cost. `None`: the round is
    /// over. [`served`](Self::served) has to follow.
    pub fn next(&mut self, round: &mut Round) -> Option<(usize, u64)> {
        while let Some(class) = self.classes.get(round.class) {
            if round.left > 0 {
                if round.alone {
                    return class.queues.front().map(|&at| (at, ALONE));
                }
                if class.credit >= LEAST as i64 {
                    return class.queues.front().map(|&at| (at, class.credit as u64));
                }
                round.owed = true;
            }
            round.class += 1;
            self.enter(round);
        }
        None
    }

    /// The queue that [`next`](Self::next) named has had its turn; it `stays` among those that are
    /// looked at or does not.
    pub fn served(&mut self, round: &mut Round, service: Service, stays: bool) {
        let Some(class) = self.classes.get_mut(round.class) else { return };
        class.credit -= service.cost as i64;
        class.spent += service.cost;
        if stays && service.more && class.spent < QUANTUM && !round.alone {
            return;
        }
        class.spent = 0;
        if let Some(at) = class.queues.pop_front()
            && stays
        {
            class.queues.push_back(at);
        }
        round.more |= service.more;
        round.left -= 1;
        if round.left > 0 {
            return;
        }
        if !round.more {
            // Nobody of the port has anything more.
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

    /// Gives the class whose turn it is its share.
    fn enter(&mut self, round: &mut Round) {
        let Some(class) = self.classes.get_mut(round.class) else { return };
        class.credit = if round.alone { 0 } else { class.credit + QUANTUM as i64 };
        (round.left, round.more) = (class.queues.len(), false);
    }
}

#[cfg(test)]
mod tests;
