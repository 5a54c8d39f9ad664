//! The thread.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use rtrb::{Consumer, RingBuffer};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::queue::{CAPACITY, InterruptQueue};
use super::shared::{Shared, WINDOW};
use super::target::Target;
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

impl InterruptThread {
    /// Starts the thread on `cpu`, with a queue for each of `workers`.
    ///
    /// # Errors
    /// When the thread cannot be started, or the CPU does not exist or is not available.
    pub fn start(cpu: usize, workers: usize) -> io::Result<(Self, Vec<InterruptQueue>)> {
        let shared = Arc::new(Shared::new());
        let (producers, queues): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| RingBuffer::new(CAPACITY)).unzip();
        let sender = Sender { shared: Arc::clone(&shared), queues };
        let (report, pinned) = mpsc::channel();
        let builder = thread::Builder::new().name("rm-interrupts".into());
        let thread = builder.spawn(move || {
            sender.shared.thread.get_or_init(thread::current);
            // The caller waits for this report.
            let _ = report.send(pin(cpu));
            sandbox::enter_thread(sandbox::Role::Helper);
            sender.run();
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

/// What the thread has.
struct Sender {
    shared: Arc<Shared>,
    queues: Vec<Consumer<Arc<Target>>>,
}

impl Sender {
    fn run(mut self) {
        let mut since = ticks::now();
        let mut in_window = 0;
        let mut polls = 0;
        loop {
            let sent = self.send_queued();
            in_window += sent;
            polls += 1;
            if sent == 0 && polls < POLLS {
                std::hint::spin_loop();
                continue;
            }
            polls = 0;
            if self.shared.state.has_ended() {
                self.send_queued();
                return;
            }
            if ticks::now().wrapping_sub(since) >= WINDOW {
                if in_window < RARE {
                    self.sleep();
                }
                (since, in_window) = (ticks::now(), 0);
            }
        }
    }

    /// Sleeps until a worker wakes the thread. Returns at once if something is queued.
    fn sleep(&self) {
        let state = &self.shared.state;
        if state.sleep(|| self.queues.iter().all(Consumer::is_empty)) {
            while state.is_asleep() {
                thread::park();
            }
        }
    }

    /// Sends what is queued. Returns how many interrupts that were.
    fn send_queued(&mut self) -> u64 {
        let mut sent = 0;
        for queue in &mut self.queues {
            // A worker that queues without end must not keep the others waiting.
            for _ in 0..CAPACITY {
                let Ok(target) = queue.pop() else { break };
                target.send_queued();
                sent += 1;
            }
        }
        if sent > 0 {
            self.shared.sent.fetch_add(sent, Ordering::Relaxed);
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
