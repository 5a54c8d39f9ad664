//! The threads and queues of a scene, and which stream takes which of them.

use super::actor::{Actor, Frame, Queue, Role};
use super::place::{self, choose};
use super::scene::{Part, Scene};

/// Salts that make the hashes of a stream independent.
const TX: u64 = 1;
const RX: u64 = 2;

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// The number of its link.
    pub link: usize,
    /// The guest that sends.
    pub source: usize,
    /// The guest that receives.
    pub target: usize,
    /// The queue of frames that its sender may send.
    pub credits: usize,
    /// Its queue to the backend.
    pub tx: usize,
}

/// All there is in a scene.
#[derive(Debug, Default)]
pub struct Stage {
    /// Threads; the workers come first.
    pub actors: Vec<Actor>,
    /// Queues.
    pub queues: Vec<Queue>,
    /// Streams.
    pub streams: Vec<Stream>,
    /// Each worker's queue of frames from other workers.
    handoff: Vec<usize>,
    /// The queue to the guest and the worker that owns the pair, by guest and queue pair.
    rx: Vec<Vec<(usize, usize)>>,
}

impl Stage {
    /// Makes the threads and queues. Guests run on the CPUs with number `cpus`, workers on number
    /// 0.
    pub fn new(scene: &Scene, cpus: usize) -> Stage {
        let mut stage = Stage::default();
        stage.actors.extend((0..scene.workers).map(|_| Actor::new(Role::Worker, 0)));
        for worker in 0..scene.workers {
            let queue = stage.queue(worker, true);
            stage.handoff.push(queue);
        }
        let mut sends = Vec::new();
        for workers in place::workers(scene.guests, scene.queues, scene.workers) {
            let pairs = workers.into_iter().map(|worker| stage.pair(worker, cpus));
            let (own, rx): (Vec<_>, Vec<_>) = pairs.unzip();
            sends.push(own);
            stage.rx.push(rx);
        }
        for (link, &(source, target)) in scene.links.iter().enumerate() {
            for _ in 0..scene.streams {
                let number = stage.streams.len();
                let (credits, tx) =
                    sends[source][choose(scene.flows, number, scene.queues, scene.seed, TX)];
                stage.streams.push(Stream { link, source, target, credits, tx });
            }
        }
        stage
    }

    /// A queue pair, and a guest's two threads for it: one sends, one receives.
    fn pair(&mut self, worker: usize, cpus: usize) -> ((usize, usize), (usize, usize)) {
        let mut thread = |role| {
            self.actors.push(Actor::new(role, cpus));
            self.queue(self.actors.len() - 1, false)
        };
        let (credits, rx) = (thread(Role::Sender), thread(Role::Receiver));
        let tx = self.queue(worker, false);
        ((credits, tx), (rx, worker))
    }

    fn queue(&mut self, owner: usize, crossed: bool) -> usize {
        let queue = self.queues.len();
        self.queues.push(Queue { owner, crossed, frames: Default::default() });
        self.actors[owner].queues.push(queue);
        queue
    }

    /// The queue that worker `who` puts a stream's frame into: one of its own if the receiver has
    /// any there, by hash, or that of the worker which has one.
    pub fn way(&self, scene: &Scene, who: usize, stream: usize) -> usize {
        let rx = &self.rx[self.streams[stream].target];
        let own = rx.iter().filter(|(_, worker)| *worker == who);
        let of = |count| choose(scene.flows, stream, count, scene.seed, RX);
        match own.clone().count() {
            0 => self.handoff[rx[of(rx.len())].1],
            count => own.map(|(queue, _)| *queue).nth(of(count)).unwrap_or_default(),
        }
    }

    /// Whether worker `who` has no queue of the receiver of a stream.
    pub fn is_remote(&self, who: usize, stream: usize) -> bool {
        self.rx[self.streams[stream].target].iter().all(|(_, worker)| *worker != who)
    }

    /// Takes the next burst for a thread, of at most `most` frames. False: there is none.
    pub fn take(&mut self, who: usize, most: usize) -> bool {
        let actor = &mut self.actors[who];
        let count = actor.queues.len();
        for n in 0..count {
            let index = (actor.next + n) % count;
            let queue = &mut self.queues[actor.queues[index]];
            let taken = queue.frames.len().min(most);
            if taken > 0 {
                actor.burst.extend(queue.frames.drain(..taken));
                (actor.next, actor.crossed, actor.at) = (index + 1, queue.crossed, 0);
                return true;
            }
        }
        false
    }

    /// Whether work waits for a thread.
    pub fn waits(&self, who: usize) -> bool {
        self.actors[who].queues.iter().any(|queue| !self.queues[*queue].frames.is_empty())
    }

    /// The next step of a thread's burst, and its frame; none when the burst is done.
    pub fn part(&self, scene: &Scene, who: usize) -> Option<(Part, Frame)> {
        let actor = &self.actors[who];
        let parts = match actor.role {
            Role::Worker => scene.duties.worker.parts.len() + 1,
            Role::Sender | Role::Receiver => 1,
        };
        // The burst itself counts as one step of the first frame.
        let (frame, part) = match actor.at.checked_sub(1) {
            None => (0, None),
            Some(at) => (at / parts, Some(at % parts)),
        };
        let frame = *actor.burst.get(frame)?;
        Some((self.part_of(scene, who, frame, part), frame))
    }

    fn part_of(&self, scene: &Scene, who: usize, frame: Frame, part: Option<usize>) -> Part {
        let actor = &self.actors[who];
        let guest = match actor.role {
            Role::Sender => scene.duties.sender,
            Role::Receiver => scene.duties.receiver,
            Role::Worker => return self.part_of_worker(scene, who, frame, part),
        };
        Part::Work(if part.is_none() { guest.burst } else { guest.frame })
    }

    fn part_of_worker(&self, scene: &Scene, who: usize, frame: Frame, part: Option<usize>) -> Part {
        let (work, crossed) = (&scene.duties.worker, self.actors[who].crossed);
        let remote = || !crossed && scene.workers > 1 && self.is_remote(who, frame.stream);
        match part {
            None => Part::Work(work.burst),
            Some(0) if crossed => Part::Work(work.handoff),
            Some(0) => Part::Work(work.head + if remote() { work.handoff } else { 0 }),
            Some(_) if remote() => Part::Work(0),
            Some(part) => work.parts[part - 1],
        }
    }
}
