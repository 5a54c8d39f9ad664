//! A worker: one thread that owns queue pairs and carries their frames.
//!
//! It looks at the queues that had something lately, one burst each in turn. A queue that had nothing for a while is
//! *armed*: its peer is asked to signal, and it costs nothing until then. When all are armed, the worker sleeps in the
//! kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use frame::Headers;
use switch::{PortId, Switch, Verdict};

use crate::burst::{BURST, Burst};
use crate::carry::deliver_to;
use crate::count::{Drop, WorkerCounters};
use crate::crossing::Crossing;
use crate::flowcache::{Fate, FlowCache};
use crate::parcel::{Lane, Parcel};
use crate::poll::{self, Window};
use crate::port::QueuePair;
use crate::slab::Slab;
use crate::slot::{Attachment, Slot, Wait, Watch};
use crate::steer::Routes;
use crate::topology::{Published, QueueId, Topology};
use crate::wake::Doorbell;
use crate::watch::{SIGNALS, Signal, Watcher};

/// How often a worker that is kept busy by some queues looks for signals of those that are armed.
const GLANCE: Duration = Duration::from_micros(20);

/// Something that a worker is asked to do, between bursts.
pub enum Command {
    /// Take this queue pair.
    Attach(Box<Attachment>),
    /// Give this queue pair back, once nothing of it is under way.
    Detach(QueueId, Sender<Box<dyn QueuePair>>),
    /// End.
    Stop,
}

/// Commands for one worker.
#[derive(Default)]
pub struct Mailbox {
    full: AtomicBool,
    commands: Mutex<Vec<Command>>,
}

impl Mailbox {
    /// Leaves a command; the worker's doorbell is to be rung afterwards.
    pub fn post(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.full.store(true, Ordering::Release);
    }

    fn has_mail(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    fn take(&self) -> Vec<Command> {
        self.full.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What all workers, and the control side, see.
pub struct Shared {
    /// Where the ports' queues are.
    pub topology: Published<Topology>,
    /// Decides where frames go. Workers ask it only when their caches don't know.
    pub switch: Mutex<Switch>,
    /// Commands, one box a worker.
    pub mailboxes: Vec<Mailbox>,
    /// Wakes a worker.
    pub doorbells: Vec<Doorbell>,
    /// The topology that each worker goes by.
    pub obeyed: Vec<AtomicU64>,
    /// When seconds began to be counted.
    pub start: Instant,
}

impl Shared {
    /// Whole seconds since the start, from 1.
    pub fn seconds(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.start).as_secs() as u32 + 1
    }

    /// What the switch says of a frame.
    #[cold]
    pub fn ask(&self, now: u32, ingress: PortId, headers: &Headers) -> Verdict {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner).decide(now, ingress, headers)
    }
}

/// One thread's world. Nothing in it is shared but what [`Shared`] holds and the lanes to other workers.
pub struct Worker {
    pub(crate) own: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) slots: Slab,
    pub(crate) routes: Routes,
    pub(crate) cache: FlowCache,
    pub(crate) burst: Burst,
    pub(crate) crossing: Crossing,
    pub(crate) dirty: Vec<usize>,
    pub(crate) now: Instant,
    pub(crate) seconds: u32,
    topology: Arc<Topology>,
    seen: u64,
    stale: bool,
    active: Vec<usize>,
    watcher: Watcher,
    window: Window,
    glanced: Instant,
    moved: Instant,
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
        let generations = Arc::clone(shared.switch.lock().unwrap_or_else(PoisonError::into_inner).generations());
        let now = Instant::now();
        Ok(Worker {
            own,
            counters,
            slots: Slab::default(),
            routes: Routes::default(),
            cache: FlowCache::new(generations),
            burst: Burst::new(),
            crossing: Crossing::new(lanes),
            dirty: Vec::with_capacity(BURST),
            now,
            seconds: shared.seconds(now),
            topology: Arc::default(),
            seen: 0,
            stale: true,
            active: Vec::new(),
            watcher,
            window: Window::default(),
            glanced: now,
            moved: now,
            shared,
        })
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        while self.obey() {
            self.tick();
            if self.pass() {
                self.counters.busy_passes.add(1);
                self.moved = self.now;
            } else {
                self.counters.idle_passes.add(1);
                self.rest();
            }
            if self.now - self.glanced > GLANCE {
                self.glance(Some(Duration::ZERO));
            }
        }
    }

    /// Takes note of a changed topology, and carries out commands. False: the end.
    fn obey(&mut self) -> bool {
        // In this order: a command is posted before the topology that supposes it is carried out.
        if let Some(topology) = self.shared.topology.newer(&mut self.seen) {
            self.topology = topology;
            self.stale = true;
        }
        if self.shared.mailboxes[self.own].has_mail() {
            for command in self.shared.mailboxes[self.own].take() {
                match command {
                    Command::Attach(attachment) => self.attach(*attachment),
                    Command::Detach(queue, reply) => self.detach(queue, reply),
                    Command::Stop => return false,
                }
            }
        }
        if std::mem::take(&mut self.stale) {
            self.routes = Routes::new(&self.topology, self.own, self.slots.by_queue());
            self.settle();
            self.shared.obeyed[self.own].store(self.seen, Ordering::Release);
        }
        true
    }

    fn tick(&mut self) {
        self.now = Instant::now();
        self.seconds = self.shared.seconds(self.now);
    }

    fn attach(&mut self, attachment: Attachment) {
        let queue = attachment.id;
        let at = self.slots.insert(Slot::new(attachment, self.now));
        let Some(slot) = self.slots.get_mut(at) else { return };
        for (fd, signal) in slot.on.pair.wakers().into_iter().zip([Signal::Tx(queue), Signal::Rx(queue)]) {
            if let Some(fd) = fd {
                // Fails for kinds of files that cannot be watched; ports refuse those before they get here.
                let _ = self.watcher.add(fd, signal);
            }
        }
        self.active.push(at);
        self.stale = true;
    }

    fn detach(&mut self, queue: QueueId, reply: Sender<Box<dyn QueuePair>>) {
        // An unknown queue drops `reply`, which the asker sees.
        let Some(at) = self.slots.find(queue) else { return };
        if let Some(slot) = self.slots.get_mut(at) {
            slot.leaving = Some(reply);
        }
        self.release(at);
    }

    /// Gives a leaving pair back, if nothing of it is under way any more.
    fn release(&mut self, at: usize) {
        let ready = |slot: &Slot| slot.leaving.is_some() && slot.tickets.is_empty();
        if !self.slots.get(at).is_some_and(ready) {
            return;
        }
        let Some(mut slot) = self.slots.remove(at) else { return };
        slot.flush();
        for fd in slot.on.pair.wakers().into_iter().flatten() {
            self.watcher.remove(fd);
        }
        self.active.retain(|&other| other != at);
        self.dirty.retain(|&other| other != at);
        self.forget_waits(at);
        self.stale = true;
        if let Some(reply) = slot.leaving.take() {
            // Whoever asked may have given up.
            let _ = reply.send(slot.on.pair);
        }
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

    /// One turn of everything there is to do. True when anything moved.
    fn pass(&mut self) -> bool {
        let mut moved = false;
        for worker in 0..self.crossing.workers() {
            moved |= self.take_back(worker);
            moved |= self.unpack(worker);
        }
        let mut turn = 0;
        while let Some(&at) = self.active.get(turn) {
            let found = self.carry(at);
            moved |= found;
            if self.keep_looking(at, found) {
                turn += 1;
            } else {
                self.active.swap_remove(turn);
            }
        }
        moved
    }

    /// After a turn of the queue in slot `at`: whether it stays among those that are looked at.
    fn keep_looking(&mut self, at: usize, found: bool) -> bool {
        let others_busy = self.active.len() > 1;
        let Some(slot) = self.slots.get_mut(at) else { return false };
        let Watch::Polled { found: last } = slot.watch else { return false };
        if found {
            slot.wait = None;
            slot.watch = Watch::Polled { found: self.now };
            return true;
        }
        if slot.wait.is_some() || slot.settle || self.now - last < self.window.of(others_busy) {
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
            Err(breach) => {
                slot.break_off(breach);
                false
            }
        }
    }

    /// Own parcels that have come back: their frames are complete.
    fn take_back(&mut self, worker: usize) -> bool {
        let mut moved = false;
        while let Some(parcel) = self.crossing.returned(worker) {
            moved = true;
            if let Some(at) = self.slots.find(parcel.sender) {
                self.settle_parcel(at, &parcel);
            }
            self.crossing.recycle(parcel);
        }
        moved
    }

    fn settle_parcel(&mut self, at: usize, parcel: &Parcel) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.on.counters.lose(Drop::PortDown, parcel.lost);
        let complete = slot.tickets.returned(parcel.ticket);
        if slot.wait == Some(Wait::Parcels) {
            slot.wait = None;
        }
        if slot.is_sound() && complete > 0 {
            slot.on.pair.complete(complete);
            slot.dirty = true;
            slot.flush();
        }
        self.release(at);
    }

    /// Delivers what other workers' queues have for queues of this one.
    fn unpack(&mut self, worker: usize) -> bool {
        let mut moved = false;
        while let Some(mut parcel) = self.crossing.receive(worker) {
            let before = parcel.next;
            let whole = self.deliver_parcel(&mut parcel);
            moved |= parcel.next > before;
            self.flush();
            if !whole {
                self.crossing.hold(worker, parcel);
                break;
            }
            moved = true;
            self.crossing.give_back(worker, parcel);
            self.shared.doorbells[worker].ring();
        }
        moved
    }

    /// Delivers a parcel's frames. False when its receiver is full, and may have a little more time.
    fn deliver_parcel(&mut self, parcel: &mut Parcel) -> bool {
        let frames = parcel.burst.frames().len();
        let Some(at) = self.slots.find(parcel.receiver) else {
            parcel.lost = (frames - parcel.next) as u64;
            parcel.next = frames;
            return true;
        };
        let Some(slot) = self.slots.get_mut(at) else { return true };
        if !slot.dirty && slot.is_sound() {
            slot.dirty = true;
            self.dirty.push(at);
            if let Err(breach) = slot.on.pair.prepare(frames - parcel.next) {
                slot.break_off(breach);
            }
        }
        while let Some(frame) = parcel.burst.frames().get(parcel.next) {
            if let Fate::To(target) = frame.fate
                && deliver_to(slot, &parcel.burst, parcel.next, target.tag, self.now).is_some()
            {
                return false;
            }
            parcel.next += 1;
        }
        true
    }

    /// Nothing moved: looks a little longer, or sleeps.
    fn rest(&mut self) {
        let waits = |at: &usize| self.slots.get(*at).is_some_and(|slot| slot.wait.is_some() || slot.settle);
        let idle = self.active.iter().all(waits) && self.now - self.moved >= self.window.of(false);
        if !idle {
            std::hint::spin_loop();
            return;
        }
        let (receivers, until) = self.full_receivers();
        if !receivers.is_empty() || !self.active.is_empty() {
            self.wait_for_room(&receivers, until);
        } else {
            self.sleep(None);
        }
    }

    /// Receivers that frames wait for, and when the first of those waits ends.
    fn full_receivers(&self) -> (Vec<usize>, Option<Instant>) {
        let mut receivers = Vec::new();
        let mut until = None;
        for &at in &self.active {
            if let Some(Some(Wait::Receiver { slot, until: end })) = self.slots.get(at).map(|slot| slot.wait) {
                receivers.push(slot);
                until = Some(until.map_or(end, |u: Instant| u.min(end)));
            }
        }
        for parcel in self.crossing.held() {
            receivers.extend(self.slots.find(parcel.receiver));
            until = Some(self.now + poll::MAX);
        }
        (receivers, until)
    }

    /// Sleeps until one of `receivers` has room, or the first wait is over, or anything else happens.
    fn wait_for_room(&mut self, receivers: &[usize], until: Option<Instant>) {
        let mut room = false;
        for &at in receivers {
            if let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_sound()) {
                match slot.on.pair.arm(true) {
                    Ok(there) => room |= there,
                    Err(breach) => slot.break_off(breach),
                }
            }
        }
        if !room {
            let limit = until.map_or(poll::MAX * 20, |u| u.saturating_duration_since(self.now));
            self.sleep(Some(limit));
        }
        for &at in receivers {
            self.disarm(at);
        }
    }

    /// Takes back the wish for Rx signals; Tx signals stay as the slot's watch says.
    fn disarm(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_sound()) else { return };
        slot.on.pair.disarm();
        if slot.watch == Watch::Armed {
            match slot.on.pair.arm(false) {
                Ok(true) => self.activate(at),
                Ok(false) => {}
                Err(breach) => slot.break_off(breach),
            }
        }
    }

    /// Sleeps in the kernel until a signal comes or `limit` has passed.
    fn sleep(&mut self, limit: Option<Duration>) {
        let doorbell = &self.shared.doorbells[self.own].sleeping;
        doorbell.announce();
        if self.has_mail() {
            doorbell.awake();
            return;
        }
        self.counters.sleeps.add(1);
        self.glance(limit);
        self.shared.doorbells[self.own].sleeping.awake();
        let slept = self.now;
        self.tick();
        self.window.slept(self.now - slept);
        self.moved = self.now;
    }

    /// Whether another thread has left something for this worker.
    fn has_mail(&self) -> bool {
        let shared = &self.shared;
        self.crossing.has_mail() || shared.mailboxes[self.own].has_mail() || shared.topology.is_newer(self.seen)
    }

    /// Takes note of the signals that have come, waiting for one up to `limit`.
    fn glance(&mut self, limit: Option<Duration>) {
        self.glanced = self.now;
        let mut woken = [QueueId(0); SIGNALS];
        let mut count = 0;
        self.watcher.wait(limit, |signal| {
            if let Signal::Tx(queue) = signal {
                woken[count] = queue;
                count += 1;
            }
        });
        for &queue in &woken[..count] {
            if let Some(at) = self.slots.find(queue) {
                self.activate(at);
            }
        }
    }

    /// Looks at an armed queue again.
    fn activate(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.watch == Watch::Armed {
            slot.on.counters.kicks.add(1);
            slot.on.pair.disarm();
            slot.watch = Watch::Polled { found: self.now };
            self.active.push(at);
        }
    }
}
