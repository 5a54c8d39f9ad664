//! How many workers and queues a host needs, and why.

use std::fmt::Write as _;

use super::costs::{Costs, Era};
use super::inputs::Inputs;
use super::outcome::Outcome;
use super::scene::{Host, Scene};
use super::sim::run;

/// Most workers, and most queues of a guest.
const MOST: usize = 16;
/// TCP streams that each guest sends.
const STREAMS: usize = 8;
/// Frames to simulate, for each guest; and at least, in all.
const FRAMES: u64 = 500;
const LEAST: u64 = 6_000;
/// What a simulation may fall short of the rate by: streams are few, and where they go is chance.
const CLOSE: f64 = 0.98;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Guests; each sends to the next.
    pub guests: usize,
    /// What each of them is to send, in Gb/s.
    pub rate: f64,
    /// Bytes of a frame.
    pub bytes: f64,
    /// Chooses which streams meet on a queue.
    pub seed: u64,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The fewest that suffice, and what they come to; none if not even the most do.
    pub enough: Option<(Size, Outcome)>,
    /// What the most come to.
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

    fn simulate(&self, inputs: &Inputs, size: Size) -> Outcome {
        let Size { workers, queues } = size;
        let ring = Scene::ring(self.guests, workers, queues, STREAMS);
        let frames = (FRAMES * self.guests as u64).max(LEAST);
        let host = Host::Apart { workers, guests: usize::MAX };
        run(&Costs::new(inputs, Era::New).carrying(
            Scene { frames, seed: self.seed, ..ring },
            self.bytes,
            host,
        ))
    }

    /// Looks for the fewest workers, and then the fewest queues, with which every guest has its
    /// rate.
    pub fn answer(&self, inputs: &Inputs) -> Answer {
        let enough = |outcome: &Outcome| outcome.least() >= self.frames() * CLOSE;
        let square = |workers| Size { workers, queues: workers };
        let mut most = (square(MOST), Outcome::default());
        for workers in 1..=MOST {
            let outcome = self.simulate(inputs, square(workers));
            if enough(&outcome) {
                let fewer = (1..workers).map(|queues| Size { workers, queues });
                let found = fewer
                    .map(|size| (size, self.simulate(inputs, size)))
                    .find(|(_, outcome)| enough(outcome));
                return Answer { enough: Some(found.unwrap_or((square(workers), outcome))), most };
            }
            if outcome.least() > most.1.least() {
                most = (square(workers), outcome);
            }
        }
        Answer { enough: None, most }
    }

    /// The answer with its reasons, for people. `cpus`: how many the host has.
    pub fn explain(&self, inputs: &Inputs, answer: &Answer, cpus: usize) -> String {
        let [worker, sender, receiver] = Costs::new(inputs, Era::New).frame(self.bytes);
        let (frames, guests) = (self.frames(), self.guests as f64);
        let all = frames * guests;
        let gbps = |frames: f64| frames * self.bytes * 8.0 / 1e9;
        let (workers, own) = (all * worker / 1e9, all * (sender + receiver) / 1e9);
        let mut text = format!(
            "{} guests, each of which sends {} Gb/s to the next, in frames of {} bytes\n\
             (a prediction; what it assumes: ringmain-lab model --assumptions)\n\n\
             {frames:.0} frames in a second each, {all:.0} in all. One costs a worker {worker:.0} ns, its sender {sender:.0} ns \
             and its receiver {receiver:.0} ns.\n\
             A worker that does nothing else carries {:.1} Gb/s; this needs {workers:.2} workers' time before any of them waits \
             for another.\n",
            self.guests,
            self.rate,
            self.bytes,
            gbps(1e9 / worker),
        );
        let (size, outcome) = answer.enough.as_ref().unwrap_or(&answer.most);
        let busiest = outcome.busy.iter().copied().fold(0.0, f64::max);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "With {} and {} a guest, the guest that gets least could send {:.2} Gb/s, all together {:.1} Gb/s; then the busiest \
             worker is busy for {:.0} % of the time, the lock that is held most is held for {:.0} %, and {:.0} % of those who \
             want a lock wait for it.",
            count(size.workers, "worker"),
            count(size.queues, "queue"),
            gbps(outcome.least()),
            gbps(outcome.rate()),
            busiest * 100.0,
            outcome.held * 100.0,
            outcome.contended * 100.0,
        );
        if answer.enough.is_none() {
            let _ = writeln!(
                text,
                "\nIt can't be done with {MOST} workers; that was the best of them."
            );
            return text + &self.limit(sender.max(receiver), size.queues);
        }
        let needed = size.workers + own.ceil() as usize;
        let _ = writeln!(
            text,
            "\nIt takes {} and {} a guest. Guests use {own:.1} CPUs for their part, so the host should have {needed} CPUs.",
            count(size.workers, "worker"),
            count(size.queues, "queue"),
        );
        let _ = match cpus {
            cpus if cpus < size.workers => {
                writeln!(text, "This host has {cpus}: not even enough for the workers.")
            }
            cpus if cpus < needed => {
                writeln!(text, "This host has {cpus}: too few, once its guests are at work, too.")
            }
            cpus => writeln!(text, "This host has {cpus}: enough."),
        };
        text
    }

    /// What stands in the way where more workers don't help.
    fn limit(&self, slowest: f64, queues: usize) -> String {
        let vcpu = self.bytes * 8.0 / slowest;
        format!(
            "A guest's virtual CPU carries {vcpu:.1} Gb/s at most, and its {STREAMS} streams are spread over {queues} queues by \
             hash, as chance will have it.\n"
        )
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::super::inputs::tests::some;
    use super::*;

    fn ask(guests: usize, rate: f64) -> (Answer, String) {
        let question = Question { guests, rate, bytes: 64_000.0, seed: 1 };
        let answer = question.answer(&some());
        let text = question.explain(&some(), &answer, 4);
        (answer, text)
    }

    #[test]
    fn little_takes_one_worker_and_one_queue() {
        let (answer, text) = ask(2, 1.0);
        assert_eq!(answer.enough.unwrap().0, Size { workers: 1, queues: 1 });
        assert!(
            text.contains("It takes 1 worker and 1 queue a guest.")
                && text.contains("has 4: enough"),
            "{text}"
        );
    }

    #[test]
    fn more_takes_more_workers_and_says_when_the_host_is_too_small() {
        // A worker carries 64 000 x 8 bits in 6010 ns: 85 Gb/s.
        let (answer, text) = ask(8, 20.0);
        let (size, outcome) = answer.enough.unwrap();
        assert!(size.workers >= 2, "160 Gb/s: {size:?}");
        assert!(outcome.least() * 64_000.0 * 8.0 >= 20e9 * CLOSE);
        assert!(text.contains("too few") || text.contains("not even enough"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_said_to_be_so() {
        let (answer, text) = ask(4, 5000.0);
        assert!(
            answer.enough.is_none() && text.contains("can't be done with 16 workers"),
            "{text}"
        );
    }
}
