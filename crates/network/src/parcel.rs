//! Frames that cross from one worker to another.
//!
//! A parcel carries heads and scatter lists, never payload: the receiving worker makes the one
//! copy, out of the sender's buffers, and sends the parcel back. Only then does the sending worker
//! complete the frames, so the sender's ring stays in order and its memory stays pinned. Parcels
//! are recycled; a worker has a bounded number of them, and what finds none waits in its sender's
//! ring.

use std::collections::VecDeque;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::burst::Burst;
use crate::port::QueueError;
use crate::stage_profiler::Ticks;
use crate::topology::QueueId;

/// Parcels that one worker may have under way.
pub const PARCELS: usize = 32;

/// Frames for one queue of another worker.
pub struct Parcel {
    /// The frames, with what was decided for each.
    pub burst: Burst,
    /// The queue that they are for.
    pub receiver: QueueId,
    /// The queue that they came from.
    pub sender: QueueId,
    /// The sender's burst that they were part of.
    pub ticket: u64,
    /// What the sending worker calls it.
    pub stamp: u64,
    /// The next frame to deliver.
    pub next: usize,
    /// Frames whose receiver was gone; the sender counts them.
    pub lost: u64,
    /// What turned out to be wrong with the sender's bytes.
    pub error: Option<QueueError>,
    /// What the receiving worker calls it.
    pub number: u64,
    /// Frames of it that are lent to their receiver: it comes back when they do.
    pub lent: usize,
    /// What the sending worker did for these frames, while somebody profiles.
    pub spent: Ticks,
}

/// One worker's ends of the rings to and from one other worker.
pub struct Lane {
    /// Parcels to deliver over there.
    pub out: Producer<Box<Parcel>>,
    /// Own parcels coming back.
    pub back: Consumer<Box<Parcel>>,
    /// Parcels to deliver here.
    pub inbox: Consumer<Box<Parcel>>,
    /// Parcels of the other worker, done.
    pub done: Producer<Box<Parcel>>,
}

/// The lanes of `n` workers: `lanes[i][j]` is what worker `i` holds towards worker `j`, nothing
/// towards itself.
pub fn lanes(n: usize) -> Vec<Vec<Option<Lane>>> {
    let mut all: Vec<Vec<Option<Lane>>> = Vec::new();
    for _ in 0..n {
        let mut own = Vec::new();
        for other in &mut all {
            let (here, there) = lane();
            own.push(Some(here));
            other.push(Some(there));
        }
        own.push(None);
        all.push(own);
    }
    all
}

/// Both ends of the rings between two workers.
fn lane() -> (Lane, Lane) {
    let (out_here, inbox_there) = RingBuffer::new(PARCELS);
    let (out_there, inbox_here) = RingBuffer::new(PARCELS);
    let (done_here, back_there) = RingBuffer::new(PARCELS);
    let (done_there, back_here) = RingBuffer::new(PARCELS);
    let here = Lane { out: out_here, back: back_here, inbox: inbox_here, done: done_here };
    let there = Lane { out: out_there, back: back_there, inbox: inbox_there, done: done_there };
    (here, there)
}

/// A burst of which frames are under way: how many frames it completes, and how many parcels are
/// still out.
struct Ticket {
    frames: usize,
    parcels: usize,
}

/// A queue's bursts that are not finished, oldest first, so that frames complete in the order of
/// the ring.
#[derive(Default)]
pub struct Tickets {
    open: VecDeque<Ticket>,
    first: u64,
}

impl Tickets {
    /// Bursts that a queue may have under way.
    const LIMIT: usize = 64;

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether another burst may start.
    pub fn has_room(&self) -> bool {
        self.open.len() < Self::LIMIT
    }

    /// The number that the next burst will have.
    pub fn next(&self) -> u64 {
        self.first + self.open.len() as u64
    }

    /// A burst has been dealt with but for `parcels` that are under way. Returns how many frames
    /// are complete now.
    pub fn push(&mut self, frames: usize, parcels: usize) -> usize {
        self.open.push_back(Ticket { frames, parcels });
        self.settle()
    }

    /// A parcel of burst `ticket` has come back. Returns how many frames are complete now.
    pub fn returned(&mut self, ticket: u64) -> usize {
        let index = ticket.wrapping_sub(self.first) as usize;
        if let Some(ticket) = self.open.get_mut(index) {
            ticket.parcels = ticket.parcels.saturating_sub(1);
        }
        self.settle()
    }

    fn settle(&mut self) -> usize {
        let mut complete = 0;
        while self.open.front().is_some_and(|t| t.parcels == 0) {
            complete += self.open.pop_front().map_or(0, |t| t.frames);
            self.first += 1;
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_complete_in_order_whatever_comes_back_first() {
        let mut tickets = Tickets::default();
        let first = tickets.next();
        assert_eq!(tickets.push(10, 2), 0);
        let second = tickets.next();
        assert_eq!(tickets.push(5, 1), 0);
        assert_eq!(tickets.push(3, 0), 0);
        assert_eq!(tickets.returned(second), 0);
        assert_eq!(tickets.returned(first), 0);
        assert_eq!(tickets.returned(first), 18);
        assert!(tickets.is_empty());
    }

    #[test]
    fn a_burst_that_stays_here_completes_at_once() {
        let mut tickets = Tickets::default();
        assert_eq!(tickets.push(64, 0), 64);
        assert_eq!(tickets.next(), 1);
    }

    #[test]
    fn lanes_connect_both_ways() {
        let mut lanes = lanes(3);
        assert!(lanes[1][1].is_none());
        let parcel = Box::new(Parcel {
            burst: Burst::new(),
            receiver: QueueId(1),
            sender: QueueId(2),
            ticket: 7,
            stamp: 0,
            next: 0,
            lost: 0,
            error: None,
            number: 0,
            lent: 0,
            spent: Ticks::default(),
        });
        assert!(lanes[2][0].as_mut().unwrap().out.push(parcel).is_ok());
        let there = lanes[0][2].as_mut().unwrap();
        let parcel = there.inbox.pop().unwrap();
        assert!(there.done.push(parcel).is_ok());
        assert_eq!(lanes[2][0].as_mut().unwrap().back.pop().unwrap().ticket, 7);
    }
}
