//! The rings between two workers.

use rtrb::{Consumer, Producer, RingBuffer};

use super::batch::{HandoffBatch, MAX_BATCHES};

/// One worker's ends of the rings to and from one other worker.
pub struct WorkerChannel {
    /// Batches to deliver over there.
    pub out: Producer<Box<HandoffBatch>>,
    /// Own batches coming back.
    pub back: Consumer<Box<HandoffBatch>>,
    /// Batches to deliver here.
    pub inbox: Consumer<Box<HandoffBatch>>,
    /// Batches of the other worker, done.
    pub done: Producer<Box<HandoffBatch>>,
}

/// The channels of `n` workers: `channels[i][j]` is what worker `i` holds towards worker `j`,
/// nothing towards itself.
pub fn channels(n: usize) -> Vec<Vec<Option<WorkerChannel>>> {
    let mut all: Vec<Vec<Option<WorkerChannel>>> = Vec::new();
    for _ in 0..n {
        let mut own = Vec::new();
        for other in &mut all {
            let (here, there) = channel();
            own.push(Some(here));
            other.push(Some(there));
        }
        own.push(None);
        all.push(own);
    }
    all
}

/// Both ends of the rings between two workers.
fn channel() -> (WorkerChannel, WorkerChannel) {
    let (out_here, inbox_there) = RingBuffer::new(MAX_BATCHES);
    let (out_there, inbox_here) = RingBuffer::new(MAX_BATCHES);
    let (done_here, back_there) = RingBuffer::new(MAX_BATCHES);
    let (done_there, back_here) = RingBuffer::new(MAX_BATCHES);
    let here = WorkerChannel { out: out_here, back: back_here, inbox: inbox_here, done: done_here };
    let there =
        WorkerChannel { out: out_there, back: back_there, inbox: inbox_there, done: done_there };
    (here, there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_connect_both_ways() {
        let mut channels = channels(3);
        assert!(channels[1][1].is_none());
        let mut batch = Box::new(HandoffBatch::new());
        batch.burst_number = 7;
        assert!(channels[2][0].as_mut().unwrap().out.push(batch).is_ok());
        let there = channels[0][2].as_mut().unwrap();
        let batch = there.inbox.pop().unwrap();
        assert!(there.done.push(batch).is_ok());
        assert_eq!(channels[2][0].as_mut().unwrap().back.pop().unwrap().burst_number, 7);
    }
}
