//! Log lines on their way to standard error.
//!
//! Standard error may be a pipe whose reader has stopped, and a write then never returns. Lines
//! therefore go through a queue to a thread that does nothing else. A line that finds the queue
//! full is lost. The number of lost lines is logged when the queue is empty again.
//!
//! Lines are written at once until the writer is started, because the process must have one thread
//! when it enters its sandbox.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Bytes of lines that may wait.
const MOST: usize = 256 << 10;

/// The longest wait for the queue to drain.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Lines that wait to be written.
#[derive(Debug)]
pub struct LineQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found no room since the last report.
    lost: u64,
    /// Whether a line is being written.
    writing: bool,
    /// Whether there is a writer.
    has_writer: bool,
    /// When to return from [`LineQueue::next`] without a line.
    alarm: Option<Instant>,
}

/// The next action of the writer.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A line to write. [`LineQueue::written`] follows.
    Line(Vec<u8>),
    /// This number of lines was lost, and the queue is empty again.
    Lost(u64),
    /// The time of [`LineQueue::set_alarm`] has come.
    Alarm,
}

impl LineQueue {
    /// An empty queue without a writer.
    pub const fn new() -> Self {
        let state = State {
            lines: VecDeque::new(),
            bytes: 0,
            lost: 0,
            writing: false,
            has_writer: false,
            alarm: None,
        };
        LineQueue { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Notes that a writer serves the queue.
    pub fn begin(&self) {
        self.lock().has_writer = true;
    }

    /// Leaves a line for the writer, or writes it at once if there is no writer.
    pub fn push(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if !state.has_writer {
            drop(state);
            return io::stderr().write_all(line);
        }
        if state.bytes + line.len() > MOST {
            state.lost += 1;
            return Ok(());
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    /// Makes [`next`](Self::next) return an alarm after `delay`.
    pub fn set_alarm(&self, delay: Duration) {
        let mut state = self.lock();
        state.alarm.get_or_insert_with(|| Instant::now() + delay);
        self.changed.notify_all();
    }

    /// Waits for the writer's next action.
    pub fn next(&self) -> Next {
        let mut state = self.lock();
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                state.writing = true;
                return Next::Line(line);
            }
            if state.lost > 0 {
                return Next::Lost(std::mem::take(&mut state.lost));
            }
            let left = state.alarm.map(|alarm| alarm.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                state.alarm = None;
                return Next::Alarm;
            }
            self.wait(&mut state, left);
        }
    }

    /// Notes that the last line taken is written.
    pub fn written(&self) {
        self.lock().writing = false;
        self.changed.notify_all();
    }

    /// Waits until all lines are written, for a limited time.
    pub fn drain(&self) {
        let end = Instant::now() + LONGEST_WAIT;
        let mut state = self.lock();
        while state.has_writer && (state.writing || !state.lines.is_empty()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.wait(&mut state, Some(left));
        }
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>, limit: Option<Duration>) {
        match limit {
            None => self.changed.wait(state),
            Some(limit) => {
                let _ = self.changed.wait_for(state, limit);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_order_and_lost_ones_are_counted_once() {
        let queue = LineQueue::new();
        queue.begin();
        let line = vec![b'x'; MOST / 4];
        (0..7).for_each(|_| queue.push(&line).unwrap());
        for _ in 0..4 {
            assert_eq!(queue.next(), Next::Line(line.clone()));
            queue.written();
        }
        assert_eq!(queue.next(), Next::Lost(3));
        queue.push(b"later").unwrap();
        assert_eq!(queue.next(), Next::Line(b"later".to_vec()));
        queue.written();
        queue.drain();
    }

    #[test]
    fn an_alarm_goes_off_once() {
        let queue = LineQueue::new();
        queue.begin();
        queue.set_alarm(Duration::from_millis(1));
        queue.set_alarm(Duration::from_millis(1));
        assert_eq!(queue.next(), Next::Alarm);
        queue.push(b"line").unwrap();
        assert_eq!(queue.next(), Next::Line(b"line".to_vec()));
    }

    #[test]
    fn a_writer_that_is_stuck_is_not_waited_for() {
        let queue = LineQueue::new();
        queue.begin();
        queue.push(b"line").unwrap();
        queue.drain();
        assert_eq!(queue.next(), Next::Line(b"line".to_vec()));
    }
}
