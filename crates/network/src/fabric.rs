//! The datapath as the control side sees it: ports, queue pairs attached to workers, counters.
//!
//! The life of a port: [`Fabric::add_port`]; [`Fabric::attach`] for each queue pair that has
//! running rings, and [`Fabric::detach`] before anything about its rings changes;
//! [`Fabric::remove_port`]. Pairs belong to workers meanwhile. [`Fabric::counters`] can be read at
//! any time.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use frame::Mac;
use parking_lot::{Mutex, MutexGuard};
use ring::interrupt_thread::InterruptThread;
use runtime::{Doorbell, Group, PipelineWorkers, QueueId, ThreadUsage, group};
use switch::{Mirrors, PortId, RuleError, Switch, Tunnel};

use crate::count::{QueueCounters, WorkerCounters};
use crate::handoff::channels;
use crate::manual::ManualWorker;
use crate::pipeline::FramePipeline;
use crate::port::QueuePair;
use crate::port_accounts::PortAccounts;
use crate::port_filter::PortFilter;
use crate::queue_selector::QueueSelector;
use crate::restrictions::{Restrictions, RestrictionsCell};
use crate::schedule::{Parts, ProfileRequest, Request};

mod captures;
mod changes;
mod moves;
mod spec;
mod state;
mod stations;
mod withdrawal;

pub use changes::PairChange;
pub use spec::{FabricError, MAX_PORTS, NewPort, Workers};
use state::{Port, Queue, State};
pub use withdrawal::{InFlight, Kept};

/// The datapath: workers, the switch between them, and all ports. Dropping it ends the workers.
pub struct Fabric {
    workers: Arc<dyn PipelineWorkers<FramePipeline>>,
    /// The thread that sends the workers' interrupts, if there is one.
    interrupts: Option<InterruptThread>,
    /// Decides where frames go. Workers ask it only when their caches do not know.
    switch: Arc<Mutex<Switch>>,
    state: Mutex<State>,
    counters: Vec<Arc<WorkerCounters>>,
    moves: AtomicU64,
    /// The start of the count of seconds.
    start: Instant,
}

impl Fabric {
    /// Starts the workers.
    ///
    /// # Errors
    /// When threads or descriptors can't be had, or a CPU to pin to does not exist.
    pub fn start(config: &Workers) -> io::Result<Self> {
        Fabric::start_with(config, |doorbells, pipelines| {
            Ok(Arc::new(Group::start(doorbells, pipelines, &config.cpus, config.policy)?))
        })
    }

    /// Starts the workers through `start`, which may pair the fabric's pipelines with others.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        config: &Workers,
        start: impl FnOnce(
            Arc<[Doorbell]>,
            Vec<FramePipeline>,
        ) -> io::Result<Arc<dyn PipelineWorkers<FramePipeline>>>,
    ) -> io::Result<Self> {
        // The watchdog starts before the workers: a worker under a system-call filter can start no
        // threads.
        ring::interrupt::start_watchdog()?;
        let usage = config.usage.unwrap_or(ThreadUsage::now);
        let start = |doorbells, pipelines| Ok((start(doorbells, pipelines)?, ()));
        let (fabric, ()) = Self::with_workers(config, usage, start)?;
        Ok(fabric)
    }

    /// A fabric whose workers have no threads, and work when their owner drives them. Calls of
    /// [`attach`](Self::attach) and similar methods wait until the workers are driven
    /// ([`ManualWorker::run_while`]).
    ///
    /// # Errors
    /// When descriptors can't be had.
    pub fn manual(config: &Workers) -> io::Result<(Self, Vec<ManualWorker>)> {
        let usage = config.usage.unwrap_or(ThreadUsage::default);
        Self::with_workers(config, usage, |doorbells, pipelines| {
            let (group, workers) = Group::manual(doorbells, pipelines)?;
            Ok((Arc::new(group) as Arc<dyn PipelineWorkers<FramePipeline>>, workers))
        })
    }

    /// Whether all workers answer within this time. Workers that sleep are woken for it.
    pub fn workers_answer(&self, limit: Duration) -> bool {
        self.workers.workers_answer(limit)
    }

    fn with_workers<T>(
        config: &Workers,
        usage: fn() -> ThreadUsage,
        group: impl FnOnce(
            Arc<[Doorbell]>,
            Vec<FramePipeline>,
        ) -> io::Result<(Arc<dyn PipelineWorkers<FramePipeline>>, T)>,
    ) -> io::Result<(Self, T)> {
        let (count, start) = (config.count.max(1), Instant::now());
        let doorbells = group::doorbells(count)?;
        let switch = Arc::new(Mutex::new(Switch::new(config.limits)));
        let counters: Vec<_> = (0..count).map(|_| Arc::new(WorkerCounters::default())).collect();
        let interrupts = config.interrupt_cpu.map(|cpu| InterruptThread::start(cpu, count));
        let (interrupts, queues) = interrupts.transpose()?.unzip();
        let mut queues = queues.into_iter().flatten();
        let each = counters.iter().cloned().zip(channels(count)).enumerate();
        let pipelines = each.map(|(own, (counters, channels))| {
            let (switch, doorbells) = (Arc::clone(&switch), Arc::clone(&doorbells));
            let interrupt_queue = queues.next();
            FramePipeline::new(Parts {
                own,
                switch,
                counters,
                channels,
                doorbells,
                usage,
                start,
                interrupt_queue,
            })
        });
        let (workers, rest) = group(Arc::clone(&doorbells), pipelines.collect())?;
        let (state, moves) = (Mutex::default(), AtomicU64::new(0));
        Ok((Fabric { workers, interrupts, switch, state, counters, moves, start }, rest))
    }

    /// How many workers there are.
    pub fn worker_count(&self) -> usize {
        self.counters.len()
    }

    /// Interrupts that the thread for interrupts has sent; `None`: there is no such thread.
    pub fn interrupts_sent(&self) -> Option<u64> {
        self.interrupts.as_ref().map(InterruptThread::sent)
    }

    /// The workers' counters.
    pub fn worker_counters(&self) -> &[Arc<WorkerCounters>] {
        &self.counters
    }

    /// Adds a port without queues.
    ///
    /// # Errors
    /// When its rule is impossible, or there are too many ports.
    pub fn add_port(&self, spec: NewPort) -> Result<PortId, FabricError> {
        let mut state = self.lock();
        let free = (0..MAX_PORTS as u16).find(|id| !state.ports.contains_key(id));
        let id = PortId(free.ok_or(FabricError::TooManyPorts)?);
        let mut switch = self.switch();
        switch.add_port(id, spec.rule)?;
        switch.give_addresses(id, spec.restrictions.given_addresses());
        drop(switch);
        let NewPort { name, mtu, on_error, coalescing, policy, restrictions, .. } = spec;
        let port = Port {
            name,
            mtu,
            selector: None,
            on_error,
            coalescing,
            policy,
            restrictions: Arc::new(RestrictionsCell::new(restrictions)),
            counters: Vec::new(),
            accounts: PortAccounts::default(),
            queues: BTreeMap::new(),
        };
        state.ports.insert(id.0, port);
        self.publish(&state);
        Ok(id)
    }

    /// Removes a port. Queues that are still attached are detached and dropped.
    pub fn remove_port(&self, id: PortId) {
        let queues: Vec<QueueId> = self
            .lock()
            .ports
            .get(&id.0)
            .map(|port| port.queues.keys().copied().collect())
            .unwrap_or_default();
        for queue in queues {
            self.detach(queue);
        }
        let mut state = self.lock();
        state.ports.remove(&id.0);
        self.forget_captured(&mut state, id);
        self.switch().remove_port(id);
        self.publish(&state);
    }

    /// Hands a queue pair, number `index` of `port`, to a worker. `receives`: others may send to
    /// its Rx ring. When it returns, all workers know of the queue.
    ///
    /// The pair comes back by [`detach`](Self::detach). `None`: there is no such port.
    pub fn attach(
        &self,
        port: PortId,
        index: u16,
        pair: Box<dyn QueuePair>,
        receives: bool,
    ) -> Option<QueueId> {
        let mut state = self.lock();
        let queue = self.give(&mut state, port, index, pair, receives)?;
        let version = self.publish(&state);
        drop(state);
        self.workers.await_version(version);
        Some(queue)
    }

    /// Gives a new queue to a worker, without a new topology. `None`: there is no such port.
    fn give(
        &self,
        state: &mut State,
        port: PortId,
        index: u16,
        pair: Box<dyn QueuePair>,
        receives: bool,
    ) -> Option<QueueId> {
        let queue = QueueId(state.next_queue);
        let worker = self.place(state, port, index);
        let attachment = state.attachment(port, queue, index, pair)?;
        let entry = Queue { index, home: worker, worker, moving: state.holding, receives };
        state.ports.get_mut(&port.0)?.queues.insert(queue, entry);
        state.next_queue += 1;
        self.entrust(state, worker, queue, Box::new(attachment));
        Some(queue)
    }

    /// Takes a queue pair back from its worker, once nothing of it is in flight. The call takes
    /// microseconds, or as long as full receivers on other workers may be waited for. `None`: the
    /// pair is not attached.
    pub fn detach(&self, queue: QueueId) -> Option<Box<dyn QueuePair>> {
        let mut state = self.lock();
        let port = state.ports.values_mut().find(|port| port.queues.contains_key(&queue))?;
        let worker = port.queues.remove(&queue)?.worker;
        let version = self.publish(&state);
        let attachment = self.workers.detach(worker, queue);
        drop(state);
        self.workers.await_version(version);
        attachment.wait().map(|attachment| attachment.pair)
    }

    /// Sets the selector that chooses a queue of the port for each frame. `None`: the workers
    /// choose. When the call returns, all workers use the selector. Frames in flight arrive before
    /// those that take a new route.
    pub fn set_selector(&self, port: PortId, selector: Option<Arc<dyn QueueSelector>>) {
        let mut state = self.lock();
        let Some(entry) = state.ports.get_mut(&port.0) else { return };
        entry.selector = selector;
        let version = self.publish(&state);
        drop(state);
        self.workers.await_version(version);
    }

    /// Sets what the port may send and receive. When the call returns, all workers follow
    /// `restrictions`.
    pub fn set_restrictions(&self, port: PortId, restrictions: Restrictions) {
        let state = self.lock();
        let Some(entry) = state.ports.get(&port.0) else { return };
        let guard = |cell: &RestrictionsCell| cell.get().and_then(|it| it.guard.clone());
        let before = guard(&entry.restrictions);
        entry.restrictions.set(restrictions);
        let is_same = guard(&entry.restrictions) == before;
        let version = self.publish(&state);
        drop(state);
        self.workers.await_version(version);
        if !is_same {
            self.readdress(port);
        }
    }

    /// The addresses that a port may claim have changed.
    fn readdress(&self, port: PortId) {
        let state = self.lock();
        if let Some(entry) = state.ports.get(&port.0) {
            let restrictions = entry.restrictions.get();
            let given = restrictions.map(|it| it.given_addresses()).unwrap_or_default();
            self.switch().give_addresses(port, given);
        }
    }

    /// The filter of a port; `None`: it has none, or there is no such port.
    pub fn filter(&self, port: PortId) -> Option<Arc<PortFilter>> {
        self.lock().ports.get(&port.0)?.restrictions.get()?.filter.clone()
    }

    /// Locks a port that has no locked address to `mac`.
    ///
    /// # Errors
    /// When another port of its networks is locked to the address, or the port to another.
    pub fn lock_source(&self, port: PortId, mac: Mac) -> Result<(), RuleError> {
        self.switch().lock_source(port, mac)
    }

    /// Makes a port the far end of a tunnel: `tunnel` says what is different about it.
    pub fn set_tunnel(&self, port: PortId, tunnel: Tunnel) {
        self.switch().set_tunnel(port, tunnel);
    }

    /// Sets which ports are mirrored, and which are mirrors. Frames in flight are not affected.
    pub fn set_mirrors(&self, mirrors: Mirrors) {
        self.switch().set_mirrors(mirrors);
    }

    /// Counters of a port, by queue index. They outlive detaching.
    pub fn counters(&self, port: PortId) -> Vec<Arc<QueueCounters>> {
        self.lock().ports.get(&port.0).map(|port| port.counters.clone()).unwrap_or_default()
    }

    /// The counters of a port's first `count` queues, which need not be attached yet: another
    /// process may have counted before.
    pub fn counters_of(&self, port: PortId, count: usize) -> Vec<Arc<QueueCounters>> {
        let mut state = self.lock();
        let Some(port) = state.ports.get_mut(&port.0) else { return Vec::new() };
        port.counters.resize_with(port.counters.len().max(count), Arc::default);
        port.counters.iter().take(count).cloned().collect()
    }

    /// Which worker has each attached queue of a port: index, worker.
    pub fn placement(&self, port: PortId) -> Vec<(u16, usize)> {
        let state = self.lock();
        let queues = state.ports.get(&port.0).into_iter().flat_map(|port| port.queues.values());
        queues.map(|queue| (queue.index, queue.worker)).collect()
    }

    /// The worker for a queue of a port. A port with as many queues as there are workers gets one
    /// on each. A port with fewer queues starts at the worker that has the fewest.
    fn place(&self, state: &State, port: PortId, index: u16) -> usize {
        let count = self.counters.len();
        let first = if index == 0 { None } else { self.first_worker(state, port) };
        let start = first.unwrap_or_else(|| {
            let load = |worker: usize| {
                let queues = state.ports.values().flat_map(|port| port.queues.values());
                queues.filter(|queue| queue.worker == worker).count()
            };
            (0..count).min_by_key(|&worker| load(worker)).unwrap_or(0)
        });
        (start + usize::from(index)) % count
    }

    /// The worker of the port's queue 0, derived from any attached queue of the port.
    fn first_worker(&self, state: &State, port: PortId) -> Option<usize> {
        let queue = state.ports.get(&port.0)?.queues.values().next()?;
        let count = self.counters.len();
        Some((queue.home + count - usize::from(queue.index) % count) % count)
    }

    fn publish(&self, state: &State) -> u64 {
        // A sleeping worker sees the topology when it wakes, and sends nothing before that.
        self.workers.publish(state.topology())
    }

    /// Makes the workers take time stamps from now on, or stop if `number` is zero. When the call
    /// returns, all time up to now is in their counters, if stamps were taken before. Each `number`
    /// must differ from the one before.
    pub fn sample(&self, number: u64) {
        // Only one request is under way at a time.
        let _one = self.lock();
        for worker in 0..self.worker_count() {
            let (done, followed) = mpsc::channel();
            self.workers.request(worker, Request::Profile(ProfileRequest { number, done }));
            // The channel is closed when the worker follows the request, and never written to.
            let _ = followed.recv();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock()
    }
}
