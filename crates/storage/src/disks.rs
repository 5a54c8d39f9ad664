//! Disks as the control side sees them: their queues, on workers, and their counters.
//!
//! The life of a disk: [`Disks::add`]; [`Disks::attach`] for each queue that runs, and
//! [`Disks::detach`] before anything about its ring changes; [`Disks::remove`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use runtime::poll::PollingPolicy;
use runtime::{PipelineWorkers, QueueId};

use crate::count::QueueCounters;
use crate::disk::Disk;
use crate::pipeline::BlockPipeline;
use crate::queue::RequestQueue;
use crate::slot::{Attachment, OnError};

/// The id of a disk while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskId(u32);

/// A new disk.
pub struct DiskSpec {
    /// Its name, for the log.
    pub name: Arc<str>,
    /// Its image, and the presentation of it.
    pub disk: Arc<Disk>,
    /// Called with the queue's index when its peer breaks the protocol; from a worker, so it must
    /// not block.
    pub on_error: OnError,
    /// How workers wait for its requests; `None`: as they do for others.
    pub policy: Option<PollingPolicy>,
}

struct Entry {
    spec: DiskSpec,
    /// The worker of its first queue.
    first: usize,
    counters: Vec<Arc<QueueCounters>>,
    queues: BTreeMap<QueueId, (u16, usize)>,
}

#[derive(Default)]
struct State {
    disks: BTreeMap<DiskId, Entry>,
    next_disk: u32,
    next_queue: u64,
}

/// All disks of a daemon.
pub struct Disks {
    workers: Arc<dyn PipelineWorkers<BlockPipeline>>,
    state: Mutex<State>,
}

impl Disks {
    /// No disks, on these workers.
    pub fn new(workers: Arc<dyn PipelineWorkers<BlockPipeline>>) -> Disks {
        Disks { workers, state: Mutex::default() }
    }

    /// Adds a disk without queues.
    pub fn add(&self, spec: DiskSpec) -> DiskId {
        let mut state = self.state.lock();
        let id = DiskId(state.next_disk);
        state.next_disk += 1;
        // The worker with the fewest queues.
        let count = self.workers.count();
        let load = |worker: &usize| {
            let queues = state.disks.values().flat_map(|entry| entry.queues.values());
            queues.filter(|(_, on)| on == worker).count()
        };
        let first = (0..count).min_by_key(load).unwrap_or(0);
        let entry = Entry { spec, first, counters: Vec::new(), queues: BTreeMap::new() };
        state.disks.insert(id, entry);
        id
    }

    /// Removes a disk. Queues that are still attached are detached and dropped.
    pub fn remove(&self, id: DiskId) {
        let queues: Vec<QueueId> = {
            let state = self.state.lock();
            state.disks.get(&id).into_iter().flat_map(|disk| disk.queues.keys().copied()).collect()
        };
        for queue in queues {
            self.detach(queue);
        }
        self.state.lock().disks.remove(&id);
    }

    /// Hands queue number `index` of a disk to a worker. A disk with as many queues as there are
    /// workers has one on each. `None`: there is no such disk.
    pub fn attach(&self, id: DiskId, index: u16, queue: Box<dyn RequestQueue>) -> Option<QueueId> {
        let mut state = self.state.lock();
        let name = QueueId(state.next_queue);
        state.next_queue += 1;
        let entry = state.disks.get_mut(&id)?;
        let worker = (entry.first + usize::from(index)) % self.workers.count().max(1);
        while entry.counters.len() <= usize::from(index) {
            entry.counters.push(Arc::default());
        }
        let attachment = Attachment {
            id: name,
            class: id.0,
            name: Arc::clone(&entry.spec.name),
            index,
            queue,
            disk: Arc::clone(&entry.spec.disk),
            counters: Arc::clone(&entry.counters[usize::from(index)]),
            on_error: Arc::clone(&entry.spec.on_error),
            policy: entry.spec.policy,
            failed: false,
        };
        entry.queues.insert(name, (index, worker));
        self.workers.attach(worker, name, Box::new(attachment));
        Some(name)
    }

    /// Takes a queue back from its worker, once none of its requests is with the kernel. `None`:
    /// the queue is not attached.
    pub fn detach(&self, queue: QueueId) -> Option<Box<dyn RequestQueue>> {
        let returning = {
            let mut state = self.state.lock();
            let entry = state.disks.values_mut().find(|disk| disk.queues.contains_key(&queue))?;
            let (_, worker) = entry.queues.remove(&queue)?;
            self.workers.detach(worker, queue)
        };
        let attachment = returning.wait()?;
        debug_assert!(attachment.id == queue);
        Some(attachment.queue)
    }

    /// Makes workers follow changed limits of disks. Returns when all workers do.
    pub fn follow_limits(&self) {
        let version = self.workers.publish(());
        self.workers.await_version(version);
    }

    /// Counters of a disk, by queue index, and the worker that has the queue.
    pub fn counters(&self, id: DiskId) -> Vec<(Arc<QueueCounters>, Option<usize>)> {
        let state = self.state.lock();
        let Some(entry) = state.disks.get(&id) else { return Vec::new() };
        let worker = |index: usize| {
            let found = entry.queues.values().find(|(own, _)| usize::from(*own) == index);
            found.map(|(_, worker)| *worker)
        };
        let counters = entry.counters.iter().enumerate();
        counters.map(|(index, counters)| (Arc::clone(counters), worker(index))).collect()
    }
}
