//! Captures: copies of the frames that ports send and receive, for a reader outside of the
//! workers.
//!
//! A [`Capture`] has one ring for each worker, which only that worker writes and only the reader
//! empties. A worker that serves a captured port puts a record into its ring for each frame that
//! the filter accepts ([`tap`]). A record that does not fit is lost, and counted: no worker waits
//! for a reader. The memory of the rings is allocated and touched before a worker has them.
//!
//! Where frames pass the workers' taps is in [`capturing`](crate::capturing). A capture follows its
//! ports, not their queues: queues that come, or change workers, are captured like those that were
//! there. It ends when its last port is removed, or when it is dropped.

pub(crate) mod record;
pub(crate) mod tap;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use frame::bpf::Filter;
use rtrb::{Consumer, Producer, RingBuffer};
use runtime::Counter;
use switch::PortId;
use thiserror::Error;

use record::HEADER;
pub use record::{Direction, Record};

/// Most captures at a time.
pub const MAX_CAPTURES: usize = 8;

/// Most ports of a capture.
pub const MAX_PORTS: usize = 64;

/// Memory of the rings of a capture, in bytes, which the workers share.
const MEMORY: usize = 16 << 20;

/// Least memory of a worker's ring: room for several frames of the greatest length.
const LEAST: usize = 1 << 20;

/// Bytes of records that are taken out of a ring at a time, but for the last record.
const PORTION: usize = 256 << 10;

/// A capture to be started.
#[derive(Clone, Debug)]
pub struct CaptureSpec {
    /// The ports. Their places in this list are the numbers of the interfaces of records.
    pub ports: Vec<PortId>,
    /// Most bytes of each frame.
    pub snaplen: u32,
    /// The filter that frames must pass; `None`: all frames are captured.
    pub filter: Option<Filter>,
}

/// Why there is no capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CaptureError {
    /// There are already [`MAX_CAPTURES`].
    #[error("{MAX_CAPTURES} captures are running already: end one of them first")]
    TooMany,
    /// The capture has no ports, or too many, or one of them does not exist.
    #[error("a capture needs 1 to {MAX_PORTS} ports that exist")]
    Ports,
}

/// Counts of one interface of a capture, at one worker.
#[derive(Default, Debug)]
pub(crate) struct TapCounters {
    /// Frames that passed.
    pub seen: Counter,
    /// Those of them that the filter accepted.
    pub accepted: Counter,
    /// Those of them for which there was no room.
    pub lost: Counter,
}

/// Counts of one interface of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptureCounts {
    /// Frames that the port sent and received.
    pub seen: u64,
    /// Those of them that the filter accepted.
    pub accepted: u64,
    /// Those of them that are lost, because the reader was slower.
    pub lost: u64,
}

/// A capture that is running, as its reader has it. Dropping it ends it.
pub struct Capture {
    /// Removes the capture from the workers.
    stop: Box<dyn FnMut() + Send>,
    rings: Vec<Consumer<u8>>,
    /// By worker, and then by interface.
    counters: Vec<Arc<[TapCounters]>>,
    /// Set when all its ports are gone.
    ended: Arc<AtomicBool>,
    /// Records taken out of the rings, and in which order they are read: time, place.
    taken: Vec<u8>,
    order: Vec<(u64, usize)>,
}

impl Capture {
    /// A capture that workers serve until `stop` is called.
    pub(crate) fn new(
        stop: impl FnMut() + Send + 'static,
        ended: Arc<AtomicBool>,
        ends: Vec<(Consumer<u8>, Arc<[TapCounters]>)>,
    ) -> Capture {
        let (rings, counters) = ends.into_iter().unzip();
        let (taken, order) = (Vec::new(), Vec::new());
        Capture { stop: Box::new(stop), rings, counters, ended, taken, order }
    }

    /// Whether all its ports were removed.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends it. What is in its rings can still be read.
    pub fn end(&mut self) {
        (self.stop)();
    }

    /// Reads a portion of the captured frames, sorted by time within the portion. Returns the
    /// number of frames.
    pub fn read(&mut self, mut each: impl FnMut(Record<'_>)) -> usize {
        self.taken.clear();
        self.order.clear();
        for ring in &mut self.rings {
            take(ring, &mut self.taken, &mut self.order);
        }
        // Stable: frames of one time stay in the order of their worker.
        self.order.sort_by_key(|(time, _)| *time);
        for &(_, at) in &self.order {
            if let Some(record) = self.taken.get(at..).and_then(Record::decode) {
                each(record);
            }
        }
        self.order.len()
    }

    /// The counts so far, by interface.
    pub fn counts(&self) -> Vec<CaptureCounts> {
        let interfaces = self.counters.first().map_or(0, |counters| counters.len());
        let mut sums = vec![CaptureCounts::default(); interfaces];
        for counters in &self.counters {
            for (sum, counters) in sums.iter_mut().zip(counters.iter()) {
                sum.seen += counters.seen.get();
                sum.accepted += counters.accepted.get();
                sum.lost += counters.lost.get();
            }
        }
        sums
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}

/// Takes whole records out of a ring, until it is empty or there is a portion of them.
fn take(ring: &mut Consumer<u8>, taken: &mut Vec<u8>, order: &mut Vec<(u64, usize)>) {
    // A writer commits whole records only.
    let Ok(chunk) = ring.read_chunk(ring.slots()) else { return };
    let (first, second) = chunk.as_slices();
    let (start, mut at) = (taken.len(), 0);
    while at < PORTION {
        let mut header = [0; HEADER];
        if copy(first, second, at, &mut header) < HEADER {
            break;
        }
        let (time, len) = record::time_and_len(&header);
        let place = taken.len();
        taken.resize(place + len, 0);
        copy(first, second, at, &mut taken[place..]);
        order.push((time, place));
        at += len;
    }
    debug_assert_eq!(taken.len() - start, at);
    chunk.commit(at);
}

/// Copies from `at` in two pieces into `to`. Returns how many bytes there were.
fn copy(first: &[u8], second: &[u8], at: usize, to: &mut [u8]) -> usize {
    let head = first.get(at..).unwrap_or_default();
    let behind = second.get(at.saturating_sub(first.len())..).unwrap_or_default();
    let one = head.len().min(to.len());
    let two = behind.len().min(to.len() - one);
    to[..one].copy_from_slice(&head[..one]);
    to[one..one + two].copy_from_slice(&behind[..two]);
    one + two
}

/// A worker's ring, in a capture of a daemon with `workers` workers. All of its memory has been
/// touched.
pub(crate) fn ring(workers: usize) -> (Producer<u8>, Consumer<u8>) {
    let size = (MEMORY / workers.max(1)).max(LEAST);
    let (mut producer, mut consumer) = RingBuffer::new(size);
    if let Ok(all) = producer.write_chunk(size) {
        all.commit_all();
    }
    if let Ok(all) = consumer.read_chunk(size) {
        all.commit_all();
    }
    (producer, consumer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_copied_over_their_seam() {
        for at in 0..8 {
            let mut to = [0; 3];
            let copied = copy(&[0, 1, 2, 3], &[4, 5, 6], at, &mut to);
            let want: Vec<u8> = (at as u8..7).take(3).collect();
            assert_eq!(&to[..copied], want, "{at}");
        }
    }
}
