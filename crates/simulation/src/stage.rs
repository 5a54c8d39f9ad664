//! The threads and queues of a scene, and which stream takes which of them.

use crate::actor::{Actor, Frame, Queue, Role};
use crate::place::{self, choose};
use crate::scene::{BURST, Host, Limit, Part, Scene};

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
    /// Makes the threads and queues.
    pub fn new(scene: &Scene) -> Stage {
        let mut stage = Stage::default();
        let cpus = |worker| if scene.host == Host::Together { worker } else { 0 };
        let workers = (0..scene.workers).map(|worker| Actor::new(Role::Worker, cpus(worker)));
        stage.actors.extend(workers);
        for worker in 0..scene.workers {
            let queue = stage.queue(worker, Role::Worker);
            stage.queues[queue].crossed = true;
            stage.handoff.push(queue);
        }
        let mut sends = Vec::new();
        let places = place::workers(scene.guests, scene.queues, scene.workers);
        let threads = stage.threads(scene, &places);
        for (workers, threads) in places.into_iter().zip(threads) {
            let pairs = workers.into_iter().zip(threads);
            let pairs = pairs.map(|(worker, threads)| stage.pair(scene, worker, threads));
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

    /// The threads of all guests, by guest and queue pair: one that sends, and one that receives.
    /// `places` are the workers of all queue pairs.
    fn threads(&mut self, scene: &Scene, places: &[Vec<usize>]) -> Vec<Vec<[usize; 2]>> {
        let mut thread = |worker: &usize| {
            let cpus = if scene.host == Host::Together { *worker } else { 1 };
            self.actors.push(Actor::new(Role::Sender, cpus));
            self.actors.len() - 1
        };
        if !scene.joint {
            let mut both = |worker| [thread(worker), thread(worker)];
            return places.iter().map(|place| place.iter().map(&mut both).collect()).collect();
        }
        let mut all = vec![Vec::new(); scene.guests];
        for &(source, target) in &scene.links {
            let threads: Vec<_> = places[source].iter().map(|worker| [thread(worker); 2]).collect();
            all[source].clone_from(&threads);
            all[target] = threads;
        }
        all
    }

    /// A queue pair, served by `worker` and by a guest's threads.
    fn pair(
        &mut self,
        scene: &Scene,
        worker: usize,
        [sender, receiver]: [usize; 2],
    ) -> ((usize, usize), (usize, usize)) {
        let credits = self.queue(sender, Role::Sender);
        let rx = self.queue(receiver, Role::Receiver);
        let tx = self.queue(worker, Role::Worker);
        self.queues[rx].feeder = Some(worker);
        if let Limit::Rings { tx, rx: room } = scene.limit {
            self.queues[rx].room = room;
            // Frames with a rate are sent when they are due.
            let half = if scene.interval.is_none() { tx / 2 } else { 0 };
            self.queues[credits].wakes_at = half.max(1);
        }
        ((credits, tx), (rx, worker))
    }

    fn queue(&mut self, owner: usize, role: Role) -> usize {
        let queue = self.queues.len();
        self.queues.push(Queue {
            owner,
            role,
            feeder: None,
            room: usize::MAX,
            wakes_at: 1,
            crossed: false,
            frames: Default::default(),
        });
        self.actors[owner].queues.push(queue);
        queue
    }

    /// The frames that each stream may have under way.
    pub fn windows(&self, scene: &Scene) -> Vec<usize> {
        let tx = match scene.limit {
            Limit::Window(window) => return vec![window; self.streams.len()],
            Limit::Rings { tx, .. } => tx,
        };
        // The streams of a queue share its ring.
        let of_queue = |queue| {
            self.streams.iter().enumerate().filter(move |(_, other)| other.credits == queue)
        };
        let window = |(number, stream): (usize, &Stream)| {
            let count = of_queue(stream.credits).count();
            let before = of_queue(stream.credits).take_while(|(other, _)| *other < number).count();
            ((tx + count - 1 - before) / count).max(1)
        };
        self.streams.iter().enumerate().map(window).collect()
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

    /// Takes the next burst for a thread. False: there is none.
    pub fn take(&mut self, scene: &Scene, who: usize) -> bool {
        let count = self.actors[who].queues.len();
        for n in 0..count {
            let index = (self.actors[who].next + n) % count;
            let queue = self.actors[who].queues[index];
            let taken = self.fitting(scene, who, queue);
            if taken > 0 {
                let (actor, queue) = (&mut self.actors[who], &mut self.queues[queue]);
                actor.burst.extend(queue.frames.drain(..taken));
                (actor.role, actor.crossed) = (queue.role, queue.crossed);
                (actor.next, actor.at) = (index + 1, 0);
                return true;
            }
        }
        false
    }

    /// How many frames of a queue a thread can take: no more than a burst, and than the receivers'
    /// rings have room for. The room is taken at once.
    fn fitting(&mut self, scene: &Scene, who: usize, queue: usize) -> usize {
        let waiting = self.queues[queue].frames.len();
        if self.queues[queue].role != Role::Worker {
            return waiting.min(BURST);
        }
        let most = waiting.min(scene.burst);
        if matches!(scene.limit, Limit::Window(_)) {
            return most;
        }
        for n in 0..most {
            let stream = self.queues[queue].frames[n].stream;
            let way = self.way(scene, who, stream);
            let target = &mut self.queues[way];
            match target.room {
                0 => return n,
                _ if target.feeder.is_none() => {}
                _ => target.room -= 1,
            }
        }
        most
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
