//! The workers as the control side sees them: threads, commands, and the topology that they follow.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::control::{Command, Shared};
use crate::doorbell::Doorbell;
use crate::id::QueueId;
use crate::mailbox::Mailbox;
use crate::manual::ManualWorker;
use crate::pipeline::Pipeline;
use crate::poll::PollingPolicy;
use crate::publish::Published;
use crate::worker::Worker;

/// How often the control side checks whether a worker follows a topology.
const POLL_INTERVAL: Duration = Duration::from_micros(5);

/// Workers that follow one topology. Dropping the group ends their threads.
pub struct Group<P: Pipeline> {
    shared: Arc<Shared<P>>,
    threads: Vec<JoinHandle<()>>,
}

/// Doorbells for `count` workers, for their pipelines and for [`Group`].
///
/// # Errors
/// When descriptors cannot be had.
pub fn doorbells(count: usize) -> io::Result<Arc<[Doorbell]>> {
    (0..count).map(|_| Doorbell::new()).collect()
}

impl<P: Pipeline> Group<P> {
    /// A worker for each pipeline, without threads yet.
    fn with_workers(
        doorbells: Arc<[Doorbell]>,
        pipelines: Vec<P>,
    ) -> io::Result<(Self, Vec<Worker<P>>)> {
        let count = pipelines.len();
        let shared = Arc::new(Shared {
            topology: Published::new(P::Topology::default()),
            mailboxes: (0..count).map(|_| Mailbox::default()).collect(),
            doorbells,
            followed: (0..count).map(|_| AtomicU64::new(0)).collect(),
        });
        let worker = |(own, pipeline)| Worker::new(own, Arc::clone(&shared), pipeline);
        let workers = pipelines.into_iter().enumerate().map(worker).collect::<io::Result<_>>()?;
        Ok((Group { shared, threads: Vec::new() }, workers))
    }

    /// A thread for each pipeline, pinned to `cpus` in turn; not pinned if there are none.
    ///
    /// # Errors
    /// When threads or descriptors cannot be had, or a CPU to pin to does not exist.
    pub fn start(
        doorbells: Arc<[Doorbell]>,
        pipelines: Vec<P>,
        cpus: &[usize],
        policy: PollingPolicy,
    ) -> io::Result<Self> {
        let (mut group, workers) = Self::with_workers(doorbells, pipelines)?;
        for (own, worker) in workers.into_iter().enumerate() {
            let cpu = cpus.get(own % cpus.len().max(1)).copied();
            group.threads.push(spawn(own, cpu, policy, worker)?);
        }
        Ok(group)
    }

    /// Workers without threads, which work when their owner drives them. A method that waits for
    /// workers waits until they are driven ([`ManualWorker::run_while`]).
    ///
    /// # Errors
    /// When descriptors cannot be had.
    pub fn manual(
        doorbells: Arc<[Doorbell]>,
        pipelines: Vec<P>,
    ) -> io::Result<(Self, Vec<ManualWorker<P>>)> {
        let (group, workers) = Self::with_workers(doorbells, pipelines)?;
        Ok((group, workers.into_iter().map(ManualWorker::new).collect()))
    }

    /// How many workers there are.
    pub fn count(&self) -> usize {
        self.shared.mailboxes.len()
    }

    /// Publishes a topology, and returns its version. A sleeping worker sees it when it wakes.
    pub fn publish(&self, topology: P::Topology) -> u64 {
        self.shared.topology.set(topology)
    }

    /// Waits until every worker follows a topology at least as new as `version`. The wait usually
    /// lasts as long as a burst.
    pub fn await_version(&self, version: u64) {
        for (doorbell, followed) in self.shared.doorbells.iter().zip(&self.shared.followed) {
            doorbell.ring();
            while followed.load(Ordering::Acquire) < version {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Gives a worker a queue.
    pub fn attach(&self, worker: usize, id: QueueId, queue: P::Queue) {
        self.send(worker, Command::Attach(id, queue));
    }

    /// Takes a queue back from its worker. The queue is sent once nothing of it is in flight; the
    /// channel is closed if the worker does not have it.
    pub fn detach(&self, worker: usize, id: QueueId) -> Receiver<P::Queue> {
        let (owner, queue) = mpsc::channel();
        self.send(worker, Command::Detach(id, owner));
        queue
    }

    /// Takes a queue from its worker for another one (see [`crate::migration`]): its senders must
    /// wait already. The channel is closed if the queue could not leave in time.
    pub fn migrate(&self, worker: usize, id: QueueId) -> Receiver<P::Queue> {
        let (owner, queue) = mpsc::channel();
        self.send(worker, Command::Migrate(id, owner));
        queue
    }

    /// Takes a queue from its worker for another process (see [`crate::migration`]): its senders
    /// must wait already, and the queues that it sends to must be withdrawn, too. The channel is
    /// closed if the queue could not leave in time.
    pub fn withdraw(&self, worker: usize, id: QueueId) -> Receiver<P::Queue> {
        let (owner, queue) = mpsc::channel();
        self.send(worker, Command::Withdraw(id, owner));
        queue
    }

    /// Hands a request to a worker's pipeline.
    pub fn request(&self, worker: usize, request: P::Request) {
        self.send(worker, Command::Request(request));
    }

    /// Whether all workers answer within this time, between two bursts. Workers that sleep are
    /// woken for it.
    pub fn workers_answer(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let asked = (0..self.count()).map(|worker| {
            let (asker, answer) = mpsc::channel();
            self.send(worker, Command::Answer(asker));
            answer
        });
        let answers: Vec<Receiver<()>> = asked.collect();
        let came = |answer: &Receiver<()>| {
            answer.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok()
        };
        answers.iter().all(came)
    }

    fn send(&self, worker: usize, command: Command<P>) {
        self.shared.mailboxes[worker].post(command);
        self.shared.doorbells[worker].ring();
    }
}

impl<P: Pipeline> Drop for Group<P> {
    fn drop(&mut self) {
        for worker in 0..self.count() {
            self.send(worker, Command::Stop);
        }
        for thread in self.threads.drain(..) {
            // A worker that panics ends the process.
            let _ = thread.join();
        }
    }
}

fn spawn<P: Pipeline>(
    own: usize,
    cpu: Option<usize>,
    policy: PollingPolicy,
    mut worker: Worker<P>,
) -> io::Result<JoinHandle<()>> {
    let (report, pinned) = mpsc::channel();
    let thread = std::thread::Builder::new().name(format!("rm-worker-{own}")).spawn(move || {
        // The thread that starts the workers waits for this report.
        let _ = report.send(cpu.map_or(Ok(()), pin));
        worker.prepare_thread(policy, cpu.is_some());
        sandbox::enter_thread(sandbox::Role::Worker);
        if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
            worker.end_process(own);
        }
    })?;
    pinned.recv().map_err(io::Error::other)??;
    Ok(thread)
}

/// Binds the calling thread to one CPU.
fn pin(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
