//! The number of workers and queues that a host needs, with the reasons.

use super::costs::{Frames, Transport};
use super::inputs::Inputs;
use simulation::Outcome;
use simulation::event::ns;
use simulation::run;
use simulation::scene::{Host, Scene};

/// Most workers, as in the configuration.
const MOST_WORKERS: usize = 64;
/// Most queues of a guest, as in the configuration.
pub const MOST_QUEUES: usize = 16;
/// Numbers of queues that are tried.
const QUEUES: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, MOST_QUEUES];
/// Steps in which numbers of workers above that are tried.
const STEP: usize = 4;
/// TCP streams that each guest sends.
const STREAMS: usize = 8;
/// Frames to simulate, for each guest; and at least, in all.
const FRAMES: u64 = 500;
const LEAST: u64 = 6_000;
/// How many times as many frames are simulated at a rate.
const RANDOM: u64 = if cfg!(test) { 1 } else { 8 };
/// The part of the rate that a simulation has to reach: streams are few, and their queues are
/// chosen at random.
const CLOSE: f64 = 0.98;

/// The question.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// How frames come to their receivers.
    pub transport: Transport,
    /// Guests; each sends to the next.
    pub guests: usize,
    /// The rate of each guest, in Gb/s.
    pub rate: f64,
    /// Bytes of a frame.
    pub bytes: f64,
    /// Chooses which streams meet on a queue.
    pub seed: u64,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The fewest that suffice, and their rate; none if even the most do not suffice.
    pub enough: Option<(Size, Outcome)>,
    /// The rate with the most.
    pub most: (Size, Outcome),
}

/// How large a host's datapath is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Workers.
    pub workers: usize,
    /// Queues of each guest.
    pub queues: usize,
}

impl Question {
    /// Frames that each guest is to send in a second.
    fn frames(&self) -> f64 {
        self.rate * 1e9 / 8.0 / self.bytes
    }

    /// What guests get that send as much as is carried.
    fn saturate(&self, inputs: &Inputs, size: Size) -> Outcome {
        run(&self.scene(inputs, size))
    }

    /// What guests get that send at their rate.
    fn at_rate(&self, inputs: &Inputs, size: Size) -> Outcome {
        let interval = Some(ns(1e9 * STREAMS as f64 / self.frames()));
        let scene = self.scene(inputs, size);
        // Arrivals are random, and only many of them come at the rate.
        run(&Scene { interval, frames: scene.frames * RANDOM, ..scene })
    }

    fn scene(&self, inputs: &Inputs, size: Size) -> Scene {
        let Size { workers, queues } = size;
        let ring = Scene::ring(self.guests, workers, queues, STREAMS);
        let frames = (FRAMES * self.guests as u64).max(LEAST);
        let host = Host::Apart { workers, guests: usize::MAX };
        Frames::new(inputs, self.transport).carrying(
            Scene { frames, seed: self.seed, ..ring },
            self.bytes,
            host,
        )
    }

    /// Looks for the fewest workers, and then the fewest queues, with which every guest has its
    /// rate.
    pub fn answer(&self, inputs: &Inputs) -> Answer {
        // A guest has its rate also while the others send as much as they can. Guests that send at
        // their rate sleep more often, and waking them takes workers' time.
        let all = self.frames() * self.guests as f64;
        let enough = |size: Size, outcome: &Outcome| {
            outcome.least() >= self.frames() * CLOSE
                && self.at_rate(inputs, size).rate() >= all * CLOSE
        };
        // Fewer workers than the work needs cannot suffice.
        let first = ((self.work(inputs) * CLOSE) as usize).clamp(1, MOST_WORKERS);
        let mut most = (Size { workers: MOST_WORKERS, queues: MOST_QUEUES }, Outcome::default());
        let candidates =
            (1..=MOST_QUEUES).chain((MOST_QUEUES..=MOST_WORKERS).step_by(STEP).skip(1));
        for workers in candidates.filter(|workers| *workers + STEP > first) {
            for queues in QUEUES.into_iter().filter(|queues| *queues <= workers) {
                let size = Size { workers, queues };
                let outcome = self.saturate(inputs, size);
                if enough(size, &outcome) {
                    return Answer { enough: Some((size, outcome)), most };
                }
                if outcome.least() > most.1.least() {
                    most = (size, outcome);
                }
            }
        }
        Answer { enough: None, most }
    }

    /// Workers' time that all frames of a second take, in seconds.
    fn work(&self, inputs: &Inputs) -> f64 {
        let [worker, ..] = Frames::new(inputs, self.transport).frame(self.bytes);
        self.frames() * self.guests as f64 * worker / 1e9
    }

    /// The answer with its reasons, for people. `cpus`: how many the host has.
    pub fn explain(&self, inputs: &Inputs, answer: &Answer, cpus: usize) -> String {
        let [_, sender, receiver] = Frames::new(inputs, self.transport).frame(self.bytes);
        let (size, outcome) = answer.enough.as_ref().unwrap_or(&answer.most);
        let text = self.costs(inputs) + &self.load(inputs, *size, outcome);
        if answer.enough.is_none() {
            let limit = self.limit(sender.max(receiver), size.queues);
            return format!(
                "{text}\n{MOST_WORKERS} workers are not enough; the figures above are those of the best size found.\n{limit}"
            );
        }
        let own = self.frames() * self.guests as f64 * (sender + receiver) / 1e9;
        let needed = size.workers + own.ceil() as usize;
        let verdict = match cpus {
            cpus if cpus < size.workers => "too few even for the workers",
            cpus if cpus < needed => "too few for the workers and the guests together",
            _ => "enough",
        };
        format!(
            "{text}\nRequired: {} and {} a guest. The guests themselves use {own:.1} CPUs, so the host should have {needed} CPUs.\n\
             This host has {cpus}: {verdict}.\n",
            count(size.workers, "worker"),
            count(size.queues, "queue"),
        )
    }

    /// The question, and what a frame costs.
    fn costs(&self, inputs: &Inputs) -> String {
        let [worker, sender, receiver] = Frames::new(inputs, self.transport).frame(self.bytes);
        let (frames, work) = (self.frames(), self.work(inputs));
        format!(
            "{} guests {}, each of which sends {} Gb/s to the next, in frames of {} bytes\n\
             (a prediction; ringmain-lab model --assumptions prints its assumptions)\n\n\
             {frames:.0} frames per second each, {:.0} in all. A frame costs a worker {worker:.0} ns, its sender {sender:.0} ns and \
             its receiver {receiver:.0} ns.\n\
             A worker that does nothing else carries {:.1} Gb/s; all frames take the time of {work:.2} workers, without waits.\n",
            self.guests,
            self.place(),
            self.rate,
            self.bytes,
            frames * self.guests as f64,
            self.gbps(1e9 / worker),
        )
    }

    /// How busy workers and locks are, at the rate in question and at most.
    fn load(&self, inputs: &Inputs, size: Size, outcome: &Outcome) -> String {
        let asked = self.at_rate(inputs, size);
        let busiest = asked.busy.iter().copied().fold(0.0, f64::max);
        format!(
            "With {} and {} a guest, the slowest guest could send {:.2} Gb/s, and all together {:.1} Gb/s.\n\
             At the given rate, with frames at random moments, the slowest guest sends {:.2} Gb/s, a frame is under way for {:.1} us \
             in the mean, and the busiest worker is busy for {:.0} % of the time.\n\
             At saturation, when guests send as much as is carried, the most contended lock is held for {:.0} % of the time, and \
             {:.0} % of the threads that take a lock wait for it.\n",
            count(size.workers, "worker"),
            count(size.queues, "queue"),
            self.gbps(outcome.least()),
            self.gbps(outcome.rate()),
            self.gbps(asked.least()),
            asked.delay * 1e6,
            busiest * 100.0,
            outcome.held * 100.0,
            outcome.contended * 100.0,
        )
    }

    /// Where the guests are.
    fn place(&self) -> &'static str {
        match self.transport {
            Transport::Grants(_) => "behind Xen's rings",
            Transport::VhostUser => "behind vhost-user ports",
        }
    }

    /// Frames per second as Gb/s.
    fn gbps(&self, frames: f64) -> f64 {
        frames * self.bytes * 8.0 / 1e9
    }

    /// The limit, in words, where more workers don't help.
    fn limit(&self, slowest: f64, queues: usize) -> String {
        let vcpu = self.bytes * 8.0 / slowest;
        format!(
            "A guest's virtual CPU carries {vcpu:.1} Gb/s at most, and its {STREAMS} streams are spread over {queues} queues by \
             hash, unevenly.\n"
        )
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::super::costs::Era;
    use super::super::inputs::tests::some;
    use super::*;

    fn ask(guests: usize, rate: f64) -> (Answer, String) {
        ask_about(Transport::Grants(Era::New), guests, rate)
    }

    fn ask_about(transport: Transport, guests: usize, rate: f64) -> (Answer, String) {
        let question = Question { transport, guests, rate, bytes: 64_000.0, seed: 1 };
        let answer = question.answer(&some());
        let text = question.explain(&some(), &answer, 4);
        (answer, text)
    }

    #[test]
    fn a_low_rate_needs_one_worker_and_one_queue() {
        let (answer, text) = ask(2, 1.0);
        assert_eq!(answer.enough.unwrap().0, Size { workers: 1, queues: 1 });
        assert!(
            text.contains("Required: 1 worker and 1 queue a guest.")
                && text.contains("has 4: enough"),
            "{text}"
        );
    }

    #[test]
    fn workers_have_time_left_at_the_requested_rate() {
        let (_, text) = ask(2, 1.0);
        let (_, after) = text.split_once("busiest worker is busy for ").unwrap();
        let percent: u32 = after.split_once(' ').unwrap().0.parse().unwrap();
        // Two Gb/s of the 85 that a worker carries.
        assert!(percent < 10, "{text}");
    }

    #[test]
    fn a_higher_rate_needs_more_workers_or_a_larger_host() {
        // A worker carries 64 000 x 8 bits in 6010 ns: 85 Gb/s.
        let (answer, text) = ask(8, 20.0);
        let (size, outcome) = answer.enough.unwrap();
        assert!(size.workers >= 2, "160 Gb/s: {size:?}");
        assert!(outcome.least() * 64_000.0 * 8.0 >= 20e9 * CLOSE);
        assert!(text.contains("too few"), "{text}");
    }

    #[test]
    fn guests_with_vhost_user_need_fewer_workers() {
        let size = |transport| ask_about(transport, 8, 15.0).0.enough.unwrap().0;
        let (mapped, granted) = (size(Transport::VhostUser), size(Transport::Grants(Era::New)));
        assert!(mapped.workers < granted.workers, "{mapped:?}, {granted:?}");
        let (_, text) = ask_about(Transport::VhostUser, 2, 1.0);
        assert!(text.starts_with("2 guests behind vhost-user ports"), "{text}");
    }

    #[test]
    fn impossible_requests_are_reported() {
        let (answer, text) = ask(4, 5000.0);
        assert!(answer.enough.is_none() && text.contains("64 workers are not enough"), "{text}");
        assert_eq!(answer.most.0.workers, 64);
    }
}
