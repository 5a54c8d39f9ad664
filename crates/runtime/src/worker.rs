//! A worker: one thread that serves the queues of one pipeline.
//!
//! The worker serves the queues that had something lately, in the order that deficit round robin
//! says (see [`crate::drr`]). A queue that had nothing for a while is *armed*: its peer is asked to
//! signal, and the queue costs nothing until then. When all are armed, the worker sleeps in the
//! kernel (see [`crate::sleep`]).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::{Command, ControlLink, Shared};
use crate::drr::DrrScheduler;
use crate::id::QueueId;
use crate::migration::{Departing, Next};
use crate::pipeline::{Departure, Pipeline, Status};
use crate::queues::{Descriptors, Queues, Watch};
use crate::sleeper::Sleeper;
use crate::watcher::Signal;

/// No slot.
const NONE: usize = usize::MAX;

/// The state of one worker thread. Only its end of the control side is shared with other threads.
pub struct Worker<P: Pipeline> {
    pub(crate) link: ControlLink<P>,
    pub(crate) pipeline: P,
    pub(crate) queues: Queues<P>,
    /// The queues that are polled.
    pub(crate) active: DrrScheduler,
    pub(crate) sleeper: Sleeper,
    pub(crate) now: Instant,
    /// The slot of the queue that is being served; [`NONE`]: the worker does something else.
    serving: usize,
    /// Queues came or left since the pipeline was told of the topology.
    stale: bool,
}

impl<P: Pipeline> Worker<P> {
    pub(crate) fn new(own: usize, shared: Arc<Shared<P>>, pipeline: P) -> io::Result<Self> {
        let now = Instant::now();
        let sleeper = Sleeper::new(&shared.doorbells[own], now)?;
        if let Some(fd) = pipeline.completions() {
            sleeper.watcher.add(fd, Signal::Doorbell)?;
        }
        Ok(Worker {
            link: ControlLink::new(own, shared),
            pipeline,
            queues: Queues::default(),
            active: DrrScheduler::new(P::QUANTUM),
            sleeper,
            now,
            serving: NONE,
            stale: true,
        })
    }

    /// Works until told to stop.
    pub(crate) fn run(&mut self) {
        self.tick();
        // The clock is read once a round: where reading it traps to a hypervisor, it costs as much
        // as some frames.
        while self.obey() {
            if self.round() {
                self.poll_events_again();
                let spent = self.tick();
                self.sleeper.poll.worked_until(self.now);
                self.pipeline.counters().busy.record(spent);
            } else {
                self.idle();
            }
        }
    }

    /// The worker has panicked. Nobody else can serve its queues, and the control side would wait
    /// for it for ever, so the process ends at once, to be started again.
    #[cold]
    pub(crate) fn end_process(&self, number: usize) -> ! {
        let owner = self.pipeline.owner(self.serving).unwrap_or_else(|| "none".to_owned());
        tracing::error!(worker = number, owner, "a worker panicked; the process ends");
        std::process::abort()
    }

    /// Takes note of a changed topology, and carries out commands. False: the worker must end.
    #[inline]
    pub(crate) fn obey(&mut self) -> bool {
        // The order matters: a command is posted before the topology that assumes it was carried
        // out.
        self.stale |= self.link.refresh();
        if let Some(commands) = self.link.commands()
            && !self.carry_out(commands)
        {
            return false;
        }
        if std::mem::take(&mut self.stale) {
            self.follow();
        }
        true
    }

    #[cold]
    fn carry_out(&mut self, commands: Vec<Command<P>>) -> bool {
        for command in commands {
            match command {
                Command::Attach(id, queue) => self.attach(id, queue),
                Command::Detach(id, owner) => self.depart(id, Departure::Detach, owner),
                Command::Migrate(id, owner) => self.depart(id, Departure::Migrate, owner),
                Command::Withdraw(id, owner) => self.depart(id, Departure::Withdraw, owner),
                Command::Request(request) => self.pipeline.request(request),
                // The asker may have stopped waiting.
                Command::Answer(asker) => drop(asker.send(())),
                Command::Stop => return false,
            }
        }
        true
    }

    #[cold]
    fn follow(&mut self) {
        self.pipeline.follow(self.link.topology());
        self.choose_policy(Some(self.sleeper.policy));
        self.link.acknowledge();
    }

    /// One round of everything there is to do, after [`obey`](Self::obey). True when anything
    /// moved.
    #[inline]
    pub(crate) fn round(&mut self) -> bool {
        let (moved, units) = self.serve_all();
        if !moved {
            self.pipeline.counters().idle_passes.add(1);
            return false;
        }
        self.pipeline.counters().busy_passes.add(1);
        self.sleeper.poll.found(self.now, units);
        self.pipeline.end();
        true
    }

    /// Whether anything moved, and how many units of work were done.
    #[inline]
    fn serve_all(&mut self) -> (bool, u64) {
        self.serving = NONE;
        let mut moved = self.pipeline.begin();
        if !self.queues.departing.is_empty() {
            moved |= self.poll_departing();
        }
        let mut units = 0;
        let mut round = self.active.round();
        while let Some((slot, quantum)) = self.active.next(&mut round) {
            self.serving = slot;
            let served = self.pipeline.serve(slot, quantum);
            units += served.units;
            moved |= served.moved;
            let stays = self.keep_polling(slot, served.moved);
            self.active.served(&mut round, served, stays);
        }
        (moved || round.in_debt, units)
    }

    /// After the queue in `slot` was served: whether it stays among those that are polled.
    #[inline]
    fn keep_polling(&mut self, slot: usize, moved: bool) -> bool {
        let Some(queue) = self.queues.get_mut(slot) else { return false };
        let Watch::Polled { found } = queue.watch else { return false };
        if moved {
            queue.watch = Watch::Polled { found: self.now };
            if queue.descriptors.found_work() {
                self.unwatch(slot);
            }
            return true;
        }
        match self.pipeline.status(slot) {
            Status::Blocked(_) => true,
            Status::Failed => {
                queue.watch = Watch::Off;
                false
            }
            Status::Idle if !self.sleeper.poll.arms(found, self.now) => true,
            Status::Idle => self.arm(slot),
        }
    }

    /// Arms the queue in `slot`. Returns whether it stays among those that are polled.
    fn arm(&mut self, slot: usize) -> bool {
        // First, so that what comes after arming has looked at the ring is signalled. A queue that
        // cannot be watched is polled.
        if !self.watch(slot) {
            return true;
        }
        let (watch, stays) = match self.pipeline.arm(slot, false) {
            Ok(true) => {
                self.pipeline.disarm(slot);
                (Watch::Polled { found: self.now }, true)
            }
            Ok(false) => (Watch::Armed, false),
            Err(_) => (Watch::Off, false),
        };
        if let Some(queue) = self.queues.get_mut(slot) {
            queue.watch = watch;
        }
        stays
    }

    /// Sets the current time to `now`. Returns the time since the last call.
    #[inline]
    pub(crate) fn tick_to(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.now);
        self.pipeline.counters().polling.passed(self.sleeper.poll.state(), passed);
        self.now = now;
        self.pipeline.tick(now);
        passed
    }

    #[inline]
    pub(crate) fn tick(&mut self) -> Duration {
        self.tick_to(Instant::now())
    }

    fn attach(&mut self, id: QueueId, queue: P::Queue) {
        let attached = self.pipeline.attach(queue);
        self.queues.insert(id, attached, self.now);
        self.watch(attached.slot);
        if !attached.failed {
            self.active.push(attached.class, attached.slot);
        }
        self.stale = true;
    }

    /// Watches the descriptors of the queue in `slot`, and begins to count rounds with work. False:
    /// the kernel refuses. Ports refuse kinds of files that cannot be watched before they get here.
    pub(crate) fn watch(&mut self, slot: usize) -> bool {
        let Some(queue) = self.queues.get_mut(slot) else { return true };
        match &mut queue.descriptors {
            Descriptors::Masked => return true,
            Descriptors::Unmasked(rounds) => {
                *rounds = 0;
                return true;
            }
            Descriptors::Unwatched => {}
        }
        let (id, wakers) = (queue.id, self.pipeline.wakers(slot));
        queue.descriptors = Descriptors::watched(wakers.unmasked);
        let room = if wakers.room_is_work { Signal::Work(id) } else { Signal::Room(id) };
        let add = |(fd, signal): (Option<BorrowedFd<'_>>, _)| match fd {
            Some(fd) => self.sleeper.watcher.add(fd, signal),
            None => Ok(()),
        };
        let all = [(wakers.work, Signal::Work(id)), (wakers.room, room)];
        let watched = all.into_iter().try_for_each(add).is_ok();
        if !watched {
            self.unwatch(slot);
        }
        watched
    }

    /// Stops watching the descriptors of the queue in `slot`.
    #[cold]
    fn unwatch(&mut self, slot: usize) {
        let wakers = self.pipeline.wakers(slot);
        for fd in [wakers.work, wakers.room].into_iter().flatten() {
            self.sleeper.watcher.remove(fd);
        }
        if let Some(queue) = self.queues.get_mut(slot) {
            queue.descriptors = Descriptors::Unwatched;
        }
    }

    /// Starts the departure of a queue. If the queue is not here, its `owner` is dropped to report
    /// that.
    fn depart(&mut self, id: QueueId, how: Departure, owner: std::sync::mpsc::Sender<P::Queue>) {
        let Some(slot) = self.queues.find(id) else { return };
        self.pipeline.depart(slot, how);
        self.queues.departing.push(Departing::new(slot, how, owner, self.now));
        if how == Departure::Detach {
            self.poll_departing();
        }
    }

    /// Lets queues go that may leave. True while one migrates: its senders wait, so the worker
    /// does not sleep.
    #[cold]
    fn poll_departing(&mut self) -> bool {
        let (mut at, mut migrates) = (0, false);
        while let Some(departing) = self.queues.departing.get_mut(at) {
            let slot = departing.slot;
            migrates |= departing.how != Departure::Detach;
            match departing.poll(self.pipeline.is_drained(slot), self.now) {
                Next::Wait => at += 1,
                Next::Stay => {
                    self.pipeline.resume(slot);
                    self.queues.departing.remove(at);
                }
                Next::Detach => {
                    let departing = self.queues.departing.remove(at);
                    departing.finish(self.release(slot));
                }
            }
        }
        migrates
    }

    /// Forgets the queue in `slot`, and takes it out of the pipeline.
    fn release(&mut self, slot: usize) -> Option<P::Queue> {
        self.unwatch(slot);
        self.active.remove(slot);
        self.queues.remove(slot);
        self.stale = true;
        self.pipeline.detach(slot)
    }
}
