//! The thread, and what it shares with workers.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle, Thread};

use rtrb::{Consumer, RingBuffer};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::queue::{CAPACITY, InterruptQueue, WINDOW};
use super::state::State;
use crate::interrupt::Target;
use crate::ticks;

/// With fewer interrupts of all workers in a [`WINDOW`], the thread goes to sleep.
const RARE: u64 = 8;

/// Polls without an entry between two looks at the time.
const POLLS: u32 = 64;

/// The thread. Dropping this value ends the thread, which sends what is queued before.
pub struct InterruptThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What workers and the thread share.
pub(super) struct Shared {
    pub(super) state: State,
    /// Interrupts that the thread has sent.
    sent: AtomicU64,
    /// The thread, to wake it.
    thread: OnceLock<Thread>,
}

impl InterruptThread {
    /// Starts the thread on `cpu`, with a queue for each of `workers`.
    ///
    /// # Errors
    /// When the thread cannot be started, or the CPU does not exist or is not available.
    pub fn start(cpu: usize, workers: usize) -> io::Result<(Self, Vec<InterruptQueue>)> {
        let thread = OnceLock::new();
        let shared = Arc::new(Shared { state: State::asleep(), sent: AtomicU64::new(0), thread });
        let (producers, consumers): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| RingBuffer::new(CAPACITY)).unzip();
        let (report, pinned) = mpsc::channel();
        let (its, builder) = (Arc::clone(&shared), thread::Builder::new());
        let thread = builder.name("rm-interrupts".into()).spawn(move || {
            its.thread.get_or_init(thread::current);
            // The caller waits for this report.
            let _ = report.send(pin(cpu));
            sandbox::enter_thread(sandbox::Role::Helper);
            its.run(consumers);
        })?;
        pinned.recv().map_err(io::Error::other)??;
        let queue = |producer| InterruptQueue::new(producer, Arc::clone(&shared));
        let queues = producers.into_iter().map(queue).collect();
        Ok((InterruptThread { shared, thread: Some(thread) }, queues))
    }

    /// How many interrupts the thread has sent.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Drop for InterruptThread {
    fn drop(&mut self) {
        self.shared.state.end();
        self.shared.unpark();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Lets the thread look at its state.
    pub(super) fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The thread.
    fn run(&self, mut queues: Vec<Consumer<Arc<Target>>>) {
        let mut since = ticks::now();
        let mut in_window = 0;
        let mut polls = 0;
        loop {
            let sent = self.send_queued(&mut queues);
            in_window += sent;
            polls += 1;
            if sent == 0 && polls < POLLS {
                std::hint::spin_loop();
                continue;
            }
            polls = 0;
            if self.state.has_ended() {
                self.send_queued(&mut queues);
                return;
            }
            if ticks::now().wrapping_sub(since) < WINDOW {
                continue;
            }
            let is_rare = in_window < RARE;
            if is_rare && self.state.sleep(|| queues.iter().all(Consumer::is_empty)) {
                while self.state.is_asleep() {
                    thread::park();
                }
            }
            (since, in_window) = (ticks::now(), 0);
        }
    }

    /// Sends what is queued. Returns how many interrupts that were.
    fn send_queued(&self, queues: &mut [Consumer<Arc<Target>>]) -> u64 {
        let mut sent = 0;
        for queue in queues {
            // A worker that queues without end must not keep the others waiting.
            for _ in 0..CAPACITY {
                let Ok(target) = queue.pop() else { break };
                target.send_queued();
                sent += 1;
            }
        }
        if sent > 0 {
            self.sent.fetch_add(sent, Ordering::Relaxed);
        }
        sent
    }
}

/// Binds the calling thread to one CPU.
fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
