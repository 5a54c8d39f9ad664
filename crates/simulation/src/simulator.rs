//! The simulation: threads, their queues, the locks between them, and the CPUs that they run on.
//!
//! Streams are closed loops: each has a number of frames under way ([`Limit`]), and makes another
//! when one has arrived or has left its ring. Streams thus send no more than arrives, and the rate
//! of arrivals is the capacity of the whole. A stream with a rate makes a frame at random moments
//! instead, as long as fewer are under way; frames for which there was no room follow when there
//! is. The number of events is bounded for any scene.

use std::mem;

use crate::actor::{Frame, Role, State};
use crate::cpus::Cpus;
use crate::event::{Events, Time, seconds};
use crate::lock::{self, Lock};
use crate::outcome::{Mark, Outcome};
use crate::place::gap;
use crate::scene::{Host, Limit, Part, Scene, Which};
use crate::stage::Stage;

/// Events, and frames that go one step on, after which a simulation ends, whether it is through or
/// not.
const MOST_STEPS: u64 = 20_000_000;
/// An event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A thread that slept needs a CPU.
    Wake(usize),
    /// A thread has finished its present work.
    Step(usize),
    /// The polling time of a worker is over, if it still polls.
    Rest(usize, u64),
    /// A stream with a rate has its next frame.
    Due(usize),
}

/// The frames that a stream may send.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    /// Those that its window has room for.
    window: usize,
    /// Those that it has, if it has a rate.
    due: usize,
    /// The frames that were due from the beginning on.
    count: u64,
}

/// Runs a scene to its end.
pub fn run(scene: &Scene) -> Outcome {
    let mut sim = Sim::new(scene);
    let windows = sim.stage.windows(scene);
    let most = windows.iter().copied().max().unwrap_or(0);
    for n in 0..most {
        let open = windows.iter().enumerate().filter(|(_, window)| **window > n);
        open.for_each(|(stream, _)| sim.open(stream, None));
    }
    (0..windows.len()).for_each(|stream| sim.announce(stream));
    while sim.steps < MOST_STEPS && sim.arrived < scene.frames {
        let Some(event) = sim.events.happen() else { break };
        sim.happen(event);
        sim.steps += 1;
    }
    sim.outcome()
}

struct Sim<'a> {
    scene: &'a Scene,
    stage: Stage,
    events: Events<Event>,
    cpus: Vec<Cpus>,
    /// The guests' grant tables, and the data that they have in common: see [`Sim::lock`].
    locks: Vec<Lock>,
    allowances: Vec<Allowance>,
    steps: u64,
    made: u64,
    arrived: u64,
    /// When counting began.
    mark: Option<Mark>,
    links: Vec<u64>,
    delays: Time,
    crossed: u64,
}

impl<'a> Sim<'a> {
    fn new(scene: &'a Scene) -> Self {
        let cpus = match scene.host {
            Host::Apart { workers, guests } => vec![Cpus::new(workers), Cpus::new(guests)],
            Host::Together => (0..scene.workers).map(|_| Cpus::new(1)).collect(),
        };
        let stage = Stage::new(scene);
        Sim {
            scene,
            allowances: vec![Allowance::default(); stage.streams.len()],
            stage,
            events: Events::default(),
            cpus,
            locks: lock::of_scene(scene),
            steps: 0,
            made: 0,
            arrived: 0,
            mark: None,
            links: vec![0; scene.links.len()],
            delays: 0,
            crossed: 0,
        }
    }

    /// The window of a stream has room for one frame more, as thread `by` found.
    fn open(&mut self, stream: usize, by: Option<usize>) {
        self.allowances[stream].window += 1;
        self.send(stream, by);
    }

    /// Announces the next frame of a stream that has a rate.
    fn announce(&mut self, stream: usize) {
        let Some(interval) = self.scene.interval else { return };
        let allowance = &mut self.allowances[stream];
        let gap = gap(stream, allowance.count, self.scene.seed);
        allowance.count += 1;
        self.events.after((interval as f64 * gap) as Time, Event::Due(stream));
    }

    /// A stream sends a frame, if it may.
    fn send(&mut self, stream: usize, by: Option<usize>) {
        let has_rate = self.scene.interval.is_some();
        let allowance = &mut self.allowances[stream];
        if allowance.window == 0 || (has_rate && allowance.due == 0) {
            return;
        }
        allowance.window -= 1;
        allowance.due = allowance.due.saturating_sub(1);
        self.made += 1;
        let frame = Frame { stream, since: self.events.now() };
        self.put(self.stage.streams[stream].credits, frame, by);
    }

    /// Puts a frame into a queue; `by` is the thread that does so.
    fn put(&mut self, queue: usize, frame: Frame, by: Option<usize>) {
        let queue = &mut self.stage.queues[queue];
        queue.frames.push_back(frame);
        if queue.frames.len() >= queue.wakes_at {
            let who = queue.owner;
            self.wake(who, by);
        }
    }

    /// Has a thread look at its queues.
    fn wake(&mut self, who: usize, by: Option<usize>) {
        let actor = &mut self.stage.actors[who];
        match actor.state {
            State::Idle => {
                actor.state = State::Waking;
                self.events.after(self.scene.scheduling.wake, Event::Wake(who));
                if let Some(by) = by {
                    self.stage.actors[by].stolen += self.scene.scheduling.notify;
                }
            }
            State::Spinning => {
                // The thread begins after all frames of this moment have been put.
                actor.state = State::Running;
                self.events.after(0, Event::Step(who));
            }
            State::Waking | State::Running | State::Blocked => {}
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(who) => self.want_cpu(who),
            Event::Step(who) => {
                self.let_go(who);
                self.go_on(who);
            }
            Event::Rest(who, spins) => {
                let actor = &self.stage.actors[who];
                if actor.state == State::Spinning && actor.spins == spins {
                    self.idle(who, State::Idle);
                }
            }
            Event::Due(stream) => {
                self.allowances[stream].due += 1;
                self.send(stream, None);
                self.announce(stream);
            }
        }
    }

    fn want_cpu(&mut self, who: usize) {
        if self.cpus[self.stage.actors[who].cpus].request(who) {
            self.run(who);
        }
    }

    /// A thread has got a CPU.
    fn run(&mut self, who: usize) {
        let actor = &mut self.stage.actors[who];
        (actor.since, actor.state) = (self.events.now(), State::Running);
        self.begin(who);
    }

    /// Takes the next burst; without one, polls for a while, or sleeps.
    fn begin(&mut self, who: usize) {
        let found = self.stage.take(self.scene, who);
        let actor = &mut self.stage.actors[who];
        if found {
            actor.began = self.events.now();
            return self.go_on(who);
        }
        let owed = mem::take(&mut actor.stolen);
        if owed > 0 {
            return self.events.after(owed, Event::Step(who));
        }
        let spin = if who < self.scene.workers { self.scene.scheduling.spin } else { 0 };
        if spin == 0 || self.cpus[actor.cpus].are_short() {
            return self.idle(who, State::Idle);
        }
        actor.state = State::Spinning;
        actor.spins += 1;
        self.events.after(spin, Event::Rest(who, actor.spins));
    }

    /// Gives up its CPU.
    fn idle(&mut self, who: usize, state: State) {
        let actor = &mut self.stage.actors[who];
        actor.state = state;
        if let Some(next) = self.cpus[actor.cpus].give_up() {
            self.run(next);
        }
    }

    /// Continues with its burst, up to the next effect on others.
    fn go_on(&mut self, who: usize) {
        if self.stage.actors[who].burst.is_empty() {
            return self.begin(who);
        }
        let mut time = mem::take(&mut self.stage.actors[who].stolen);
        while let Some((part, frame)) = self.stage.part(self.scene, who) {
            match part {
                Part::Work(work) => time += work,
                // Earlier events come first.
                _ if time > 0 => break,
                Part::Locked(which, hold) => {
                    self.stage.actors[who].at += 1;
                    return self.hold(who, self.lock(which, frame), hold);
                }
                Part::Flush(which, hold) => {
                    self.stage.actors[who].at += 1;
                    let flush = self.flush(who);
                    return self.hold(who, self.lock(which, frame), hold + flush);
                }
            }
            self.stage.actors[who].at += 1;
        }
        if time > 0 {
            return self.events.after(time, Event::Step(who));
        }
        self.finish(who);
    }

    fn lock(&self, which: Which, frame: Frame) -> usize {
        let stream = &self.stage.streams[frame.stream];
        match which {
            Which::Source => stream.source,
            Which::Target => stream.target,
            Which::Guests => self.scene.guests,
            Which::Maptrack => self.scene.guests + 1,
            Which::AddressSpace => self.scene.guests + 2,
        }
    }

    fn hold(&mut self, who: usize, lock: usize, hold: Time) {
        let actor = &mut self.stage.actors[who];
        actor.holding = Some(lock);
        match self.locks[lock].ask(who, hold) {
            Some(time) => self.events.after(time, Event::Step(who)),
            None => actor.state = State::Blocked,
        }
    }

    /// Releases the lock that the thread holds, if any; the next one has it at once.
    fn let_go(&mut self, who: usize) {
        let Some(lock) = self.stage.actors[who].holding.take() else { return };
        if let Some((next, time)) = self.locks[lock].leave() {
            self.stage.actors[next].state = State::Running;
            self.events.after(time, Event::Step(next));
        }
    }

    /// Interrupts all other workers that have a CPU. Returns how long that takes.
    fn flush(&mut self, who: usize) -> Time {
        let flushing = self.scene.duties.worker.flushing;
        let mut count = 0;
        let workers = self.stage.actors.iter_mut().take(self.scene.workers).enumerate();
        for (_, other) in workers.filter(|(other, actor)| *other != who && actor.runs()) {
            other.stolen += flushing.stolen;
            count += 1;
        }
        flushing.wait * count
    }

    /// A burst is done: its frames go on.
    fn finish(&mut self, who: usize) {
        let now = self.events.now();
        let actor = &mut self.stage.actors[who];
        actor.busy += now - actor.began;
        let (role, taken) = (actor.role, actor.burst.len());
        let mut burst = mem::take(&mut actor.burst);
        self.steps += taken as u64;
        for frame in burst.drain(..) {
            match role {
                Role::Sender => self.put(self.stage.streams[frame.stream].tx, frame, Some(who)),
                Role::Worker => self.deliver(who, frame),
                Role::Receiver => self.arrive(who, frame),
            }
        }
        if role == Role::Receiver {
            self.refill(who, taken);
        }
        let actor = &mut self.stage.actors[who];
        // Its room is used again.
        actor.burst = burst;
        if now - actor.since >= self.scene.scheduling.slice && self.cpus[actor.cpus].are_short() {
            return self.make_way(who);
        }
        self.begin(who);
    }

    /// Yields its CPU to another thread, and waits for it again if there is work.
    fn make_way(&mut self, who: usize) {
        let more = self.stage.waits(who);
        self.idle(who, if more { State::Waking } else { State::Idle });
        if more {
            self.want_cpu(who);
        }
    }

    /// A worker puts a frame into the receiver's ring, or hands the frame to another worker.
    fn deliver(&mut self, who: usize, frame: Frame) {
        let queue = self.stage.way(self.scene, who, frame.stream);
        let crossed = self.stage.queues[queue].crossed;
        self.crossed += u64::from(crossed);
        self.put(queue, frame, Some(who));
        if !crossed && matches!(self.scene.limit, Limit::Rings { .. }) {
            self.open(frame.stream, Some(who));
        }
    }

    /// A guest has a frame.
    fn arrive(&mut self, who: usize, frame: Frame) {
        self.arrived += 1;
        if self.mark.is_some() {
            self.delays += self.events.now() - frame.since;
            self.links[self.stage.streams[frame.stream].link] += 1;
        } else if self.arrived >= self.scene.frames / 10 {
            self.mark = Some(self.now());
            self.crossed = 0;
        }
        if matches!(self.scene.limit, Limit::Window(_)) {
            self.open(frame.stream, Some(who));
        }
    }

    /// A receiver has given back `count` buffers of its ring.
    fn refill(&mut self, who: usize, count: usize) {
        let actor = &self.stage.actors[who];
        // The queue that the burst came from is the one before the next.
        let Some(&queue) = actor.queues.get(actor.next - 1) else { return };
        let queue = &mut self.stage.queues[queue];
        queue.room = queue.room.saturating_add(count);
        if let Some(feeder) = queue.feeder.filter(|feeder| self.stage.waits(*feeder)) {
            self.wake(feeder, Some(who));
        }
    }

    fn now(&self) -> Mark {
        let workers = &self.stage.actors[..self.scene.workers];
        Mark::new(self.events.now(), self.arrived, workers, &self.locks)
    }

    fn outcome(self) -> Outcome {
        let now = self.now();
        let seen = now.since(self.mark.as_ref().unwrap_or(&now));
        let waiting: usize = self.stage.queues.iter().map(|queue| queue.frames.len()).sum();
        let carried: usize = self.stage.actors.iter().map(|actor| actor.burst.len()).sum();
        Outcome {
            delay: seconds(self.delays) / seen.frames.max(1) as f64,
            links: self.links,
            crossed: self.crossed,
            made: self.made,
            arrived: self.arrived,
            under_way: (waiting + carried) as u64,
            whole: self.arrived >= self.scene.frames,
            ..seen
        }
    }
}

#[cfg(test)]
mod tests;
