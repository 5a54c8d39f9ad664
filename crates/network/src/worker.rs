//! A worker: one thread that owns queue pairs and carries their frames.
//!
//! It looks at the queues that had something lately, in turn (see [`crate::drr`]). A queue that
//! had nothing for a while is *armed*: its peer is asked to signal, and it costs nothing until
//! then. When all are armed, the worker sleeps in the kernel.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use ring::GrantCopyBatch;

use crate::burst::{BURST, Burst};
use crate::count::WorkerCounters;
use crate::crossing::Crossing;
use crate::drr::{DrrScheduler, Service};
use crate::flowcache::FlowCache;
use crate::held::Held;
use crate::indirection_table::IndirectionTable;
use crate::loan::Origin;
use crate::migration::{self, Migration};
use crate::parcel::Lane;
use crate::poll::short::Shortage;
use crate::poll::{Cost, Poll, PollingPolicy};
use crate::route::{Routes, View};
use crate::shared::{Command, Shared};
use crate::slab::Slab;
use crate::slot::{Attachment, Slot, Wait, Watch};
use crate::stage_profiler::{StageProfiler, Step};
use crate::topology::{QueueId, Topology};
use crate::watch::{Signal, Watcher};

/// How often a worker that is kept busy by some queues looks for signals of those that are armed.
const GLANCE: Duration = Duration::from_micros(20);

/// How often a worker that is busy looks whether flows have hashed badly.
const SPREAD: Duration = Duration::from_millis(100);

/// One thread's world. Nothing in it is shared but what [`Shared`] holds and the lanes to other
/// workers.
pub struct Worker {
    pub(crate) own: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) slots: Slab,
    pub(crate) routes: Routes,
    pub(crate) cache: FlowCache,
    pub(crate) burst: Burst,
    pub(crate) profiler: StageProfiler,
    pub(crate) crossing: Crossing,
    pub(crate) dirty: Vec<usize>,
    pub(crate) held: Held,
    /// Slots that frames are lent to.
    pub(crate) debtors: Vec<usize>,
    /// The burst that is being delivered, as loans name it, and how many of its frames are lent.
    pub(crate) origin: Origin,
    pub(crate) lent: usize,
    pub(crate) grant_copies: GrantCopyBatch,
    pub(crate) now: Instant,
    pub(crate) seconds: u32,
    pub(crate) topology: Arc<Topology>,
    pub(crate) seen: u64,
    pub(crate) stale: bool,
    /// The queues that are looked at.
    pub(crate) active: DrrScheduler,
    /// The present turn of one of them.
    pub(crate) service: Service,
    pub(crate) watcher: Watcher,
    /// Of ports that have none of their own.
    pub(crate) policy: PollingPolicy,
    pub(crate) poll: Poll,
    pub(crate) shortage: Shortage,
    /// How often it has slept, and frames that the present turn has carried.
    pub(crate) sleeps: u64,
    pub(crate) frames: u64,
    pub(crate) glanced: Instant,
    /// When it is to look at how flows are spread.
    spread: Instant,
    /// The queue that is to go to another worker.
    pub(crate) mover: Option<usize>,
}

impl Worker {
    /// Worker number `own`, with its lanes to the others.
    pub fn new(
        own: usize,
        shared: Arc<Shared>,
        counters: Arc<WorkerCounters>,
        lanes: Vec<Option<Lane>>,
    ) -> std::io::Result<Self> {
        let watcher = Watcher::new()?;
        watcher.add(shared.doorbells[own].fd(), Signal::Doorbell)?;
        let generations =
            Arc::clone(shared.switch.lock().unwrap_or_else(PoisonError::into_inner).generations());
        let now = Instant::now();
        Ok(Worker {
            own,
            profiler: StageProfiler::new(Arc::clone(&counters)),
            counters,
            slots: Slab::default(),
            routes: Routes::default(),
            cache: FlowCache::new(generations),
            burst: Burst::new(),
            crossing: Crossing::new(lanes),
            dirty: Vec::with_capacity(BURST),
            held: Held::default(),
            debtors: Vec::new(),
            origin: Origin::Parcel(0),
            lent: 0,
            grant_copies: GrantCopyBatch::new(),
            now,
            seconds: shared.seconds(now),
            topology: Arc::default(),
            seen: 0,
            stale: true,
            active: DrrScheduler::default(),
            service: Service::default(),
            watcher,
            policy: PollingPolicy::default(),
            poll: Poll::new(PollingPolicy::default(), Cost::default(), now),
            shortage: Shortage::never(now),
            sleeps: 0,
            frames: 0,
            glanced: now,
            spread: now + SPREAD,
            mover: None,
            shared,
        })
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        self.tick();
        // The clock is read once a turn: where reading it traps to a hypervisor, it costs as much
        // as some frames.
        while self.obey() {
            let began = self.now;
            if self.turn() {
                self.glance_again();
                self.tick();
                self.counters.busy.add((self.now - began).as_nanos() as u64);
            } else {
                self.rest();
            }
        }
    }

    /// One turn of everything there is to do, after [`obey`](Self::obey). True when anything moved.
    pub(crate) fn turn(&mut self) -> bool {
        self.held.send(&mut self.slots, self.now);
        self.frames = 0;
        if !self.pass() {
            self.counters.idle_passes.add(1);
            return false;
        }
        self.counters.busy_passes.add(1);
        self.poll.found(self.now, self.frames);
        if self.now >= self.spread {
            self.look_at_spread();
        }
        true
    }

    /// Lets flows that have hashed badly change queues.
    #[cold]
    fn look_at_spread(&mut self) {
        self.spread = self.now + SPREAD;
        let turned =
            self.routes.spreads().map(IndirectionTable::look).filter(|turned| *turned).count();
        self.counters.rebalanced.add(turned as u64);
    }

    /// Looks for signals of armed queues, if that was not done lately.
    pub(crate) fn glance_again(&mut self) {
        if self.now - self.glanced > GLANCE {
            self.glance(Some(Duration::ZERO));
        }
    }

    /// Takes note of a changed topology, and carries out commands. False: the end.
    pub(crate) fn obey(&mut self) -> bool {
        // In this order: a command is posted before the topology that supposes it is carried out.
        if let Some(topology) = self.shared.topology.newer(&mut self.seen) {
            self.topology = topology;
            self.stale = true;
        }
        if self.shared.mailboxes[self.own].has_mail() {
            for command in self.shared.mailboxes[self.own].take() {
                match command {
                    Command::Attach(attachment) => self.attach(*attachment),
                    Command::Detach(queue, owner) => self.detach(queue, Migration::Home(owner)),
                    Command::HandOver(queue, carrier) => {
                        let (parcels, until) =
                            (self.crossing.expected(), self.now + migration::MOST);
                        self.mover = self.slots.find(queue);
                        self.detach(
                            queue,
                            Migration::Over { carrier, parcels, calm: None, since: None, until },
                        );
                    }
                    Command::Stop => return false,
                }
            }
        }
        if std::mem::take(&mut self.stale) {
            let old = std::mem::take(&mut self.routes);
            let view = View { own: self.own, slots: self.slots.by_queue() };
            self.routes = Routes::new(&self.topology, &view, old);
            self.settle();
            self.reconsider(Some(self.policy));
            self.shared.obeyed[self.own].store(self.seen, Ordering::Release);
        }
        let number = self.shared.sampling.get();
        if number != self.profiler.number() {
            self.profiler.turn(number, &mut self.burst.heads_watch);
            self.shared.sampled[self.own].store(number, Ordering::Release);
        }
        true
    }

    pub(crate) fn tick(&mut self) {
        self.tick_to(Instant::now());
    }

    /// From here on it is `now`.
    pub(crate) fn tick_to(&mut self, now: Instant) {
        self.counters.polling.passed(self.poll.state(), now.saturating_duration_since(self.now));
        self.now = now;
        self.seconds = self.shared.seconds(now);
    }

    fn attach(&mut self, attachment: Attachment) {
        let (queue, port) = (attachment.id, attachment.port);
        let at = self.slots.insert(Slot::new(attachment, self.now));
        let Some(slot) = self.slots.get_mut(at) else { return };
        let rx = if slot.on.pair.device_queue().is_some() {
            Signal::Tx(queue)
        } else {
            Signal::Rx(queue)
        };
        for (fd, signal) in slot.on.pair.wakers().into_iter().zip([Signal::Tx(queue), rx]) {
            if let Some(fd) = fd {
                // Fails for kinds of files that cannot be watched; ports refuse those before they
                // get here.
                let _ = self.watcher.add(fd, signal);
            }
        }
        if slot.is_healthy() {
            self.active.push(port, at);
        }
        self.stale = true;
    }

    fn detach(&mut self, queue: QueueId, migration: Migration) {
        // An unknown queue drops `leave`, which the asker sees.
        let Some(at) = self.slots.find(queue) else { return };
        if let Some(slot) = self.slots.get_mut(at) {
            slot.leaving = Some(migration);
        }
        self.release(at);
    }

    /// Gives a leaving pair back, if nothing of it is under way any more.
    pub(crate) fn release(&mut self, at: usize) {
        let ready = |slot: &Slot| {
            slot.leaving.is_some() && slot.tickets.is_empty() && slot.loans.is_empty()
        };
        if !self.slots.get(at).is_some_and(ready) || !self.may_leave(at) {
            return;
        }
        let Some(mut slot) = self.slots.remove(at) else { return };
        // Nobody here will think of it later.
        let _ = slot.flush(self.now);
        slot.tell_now();
        for fd in slot.on.pair.wakers().into_iter().flatten() {
            self.watcher.remove(fd);
        }
        self.active.remove(at);
        self.dirty.retain(|&other| other != at);
        self.debtors.retain(|&other| other != at);
        self.forget_waits(at);
        self.stale = true;
        if self.mover == Some(at) {
            self.mover = None;
        }
        Worker::finish_migration(slot);
    }

    fn forget_waits(&mut self, at: usize) {
        for (_, slot) in self.slots.iter_mut() {
            if matches!(slot.wait, Some(Wait::Receiver { slot, .. }) if slot == at) {
                slot.wait = None;
            }
        }
    }

    /// Routes changed: queues with frames under way finish those first.
    fn settle(&mut self) {
        for (_, slot) in self.slots.iter_mut() {
            slot.settle = !slot.tickets.is_empty();
        }
    }

    /// Looks at everything that could want something, once. True when anything moved.
    fn pass(&mut self) -> bool {
        let mut moved = self.mover.is_some();
        self.profiler.mark(Step::Look);
        for worker in 0..self.crossing.workers() {
            moved |= self.take_back(worker);
            moved |= self.unpack(worker);
        }
        moved |= self.collect();
        if let Some(at) = self.mover {
            self.poll_migration(at);
        }
        let mut round = self.active.round();
        while let Some((at, allowance)) = self.active.next(&mut round) {
            self.service = Service { allowance, ..Service::default() };
            let found = self.carry(at);
            moved |= found;
            let stays = self.keep_looking(at, found);
            self.active.served(&mut round, self.service, stays);
        }
        moved || round.owed
    }

    /// After a turn of the queue in slot `at`: whether it stays among those that are looked at.
    fn keep_looking(&mut self, at: usize, found: bool) -> bool {
        let Some(slot) = self.slots.get_mut(at) else { return false };
        let Watch::Polled { found: last } = slot.watch else { return false };
        if found {
            slot.wait = None;
            slot.watch = Watch::Polled { found: self.now };
            return true;
        }
        if slot.is_held_up() {
            slot.wait = slot.wait.or(Some(Wait::Parcels));
        }
        if slot.wait.is_some() || slot.settle || !self.poll.arms(last, self.now) {
            return true;
        }
        match slot.on.pair.arm(false) {
            Ok(true) => {
                slot.on.pair.disarm();
                slot.watch = Watch::Polled { found: self.now };
                true
            }
            Ok(false) => {
                slot.watch = Watch::Armed;
                false
            }
            Err(error) => {
                slot.fail(error);
                false
            }
        }
    }
}
