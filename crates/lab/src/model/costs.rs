//! The conversion of measurements to a scene: each part of a time, with the lock under which it is
//! spent.
//!
//! With one worker nothing waits, and the parts add up to the measurement. The rate of more workers
//! follows from the parts that exclude each other.

use serde::{Deserialize, Serialize};

use super::inputs::{Generation, Inputs, Reads};
use simulation::event::{Time, ns};
use simulation::place::Flows;
use simulation::scene::{
    Duties, Flushing, Guest, Host, Limit, Part, Scene, Scheduling, Which, Work,
};

mod frames;

pub use frames::{Frames, Transport};

/// Slots of a ring.
const RING: usize = 256;
/// Bytes of a page.
const PAGE: f64 = 4096.0;
/// How long a thread runs on while others wait for its CPU.
const SLICE: f64 = 1.5e6;
/// Longest time for which a worker polls before it sleeps.
const SPIN: f64 = 50e3;
/// Reads to simulate, for each guest or worker.
const READS: u64 = if cfg!(test) { 60 } else { 600 };
/// Cache lines of a free lock that another CPU has used, and of the data under it.
const LOCK_LINES: f64 = 2.0;
/// Cache lines that change hands for a frame that goes to another worker, on either side.
const HANDOFF_LINES: f64 = 4.0;

/// A design of the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    /// The oldest: one lock for each grant table, one list of mappings, a flush for each page.
    Old,
    /// The newest.
    New,
}

impl Era {
    /// Both.
    pub const ALL: [Era; 2] = [Era::Old, Era::New];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Era::Old => "old design",
            Era::New => "new design",
        }
    }
}

/// The costs of one design, from the measurements.
#[derive(Clone, Copy, Debug)]
pub struct Costs<'a> {
    inputs: &'a Inputs,
    era: Era,
}

impl<'a> Costs<'a> {
    /// With that design.
    pub fn new(inputs: &'a Inputs, era: Era) -> Self {
        Costs { inputs, era }
    }

    fn of(&self) -> &'a Generation {
        match self.era {
            Era::Old => &self.inputs.old,
            Era::New => &self.inputs.new,
        }
    }

    /// Beginning to use a grant and ending it, of both ends of a copy: what four copies of one page
    /// save three times.
    fn claims(&self) -> f64 {
        let new = &self.inputs.new.copies;
        let lookups = ((new.claimed - new.kept) * 4.0 / 3.0).clamp(0.0, new.claimed);
        let rest = new.claimed - lookups;
        match self.era {
            Era::Old => (self.of().copies.claimed - rest).max(0.0),
            Era::New => lookups,
        }
    }

    /// The parts of a claim that others may have to wait for, and their lengths.
    fn claim(&self, table: Which) -> [(Which, f64); 2] {
        let touch = self.inputs.touch;
        match self.era {
            // At most, all of it is under the table's lock.
            Era::Old => [(Which::Guests, touch), (table, (self.claims() / 2.0 - touch).max(0.0))],
            // Entries lie close together, those of the table and those that say who uses them: two
            // claims write to the same lines.
            Era::New => [(Which::Guests, touch), (table, touch * 2.0)],
        }
    }

    fn work(&self, parts: Vec<Part>) -> Work {
        let generation = self.of();
        let maps = generation.maps;
        let flushing = Flushing { wait: ns(maps.beside - maps.alone), stolen: ns(maps.stolen) };
        let (shared, handover) = (ns(generation.handovers.shared), ns(generation.handovers.own));
        Work {
            parts,
            flushing,
            handover,
            shared,
            fetch: match self.era {
                Era::Old => ns(self.inputs.line * LOCK_LINES),
                // There is no lock to wait for: what moves is the data.
                Era::New => Time::MAX,
            },
            address_space: ns(self.inputs.address_space),
            handoff: ns(self.inputs.line * HANDOFF_LINES),
            ..Work::default()
        }
    }

    /// Threads that copy between pages of guests, `pieces` of `len` bytes out of each page, and do
    /// nothing else. A frame of the scene is a page of `pieces` pieces.
    pub fn copying(&self, threads: usize, pieces: u32, len: f64, apart: bool) -> Scene {
        let copies = self.of().copies;
        let each = copies.claimed - self.claims() + (len - 1.0).max(0.0) * copies.byte;
        let claims = || table_of_ends(2).flat_map(|end| self.claim(end));
        let (holds, all) = match self.era {
            Era::Old => (
                (0..pieces).flat_map(|_| claims()).collect(),
                (each + self.claims()) * f64::from(pieces),
            ),
            Era::New => (claims().collect(), each * f64::from(pieces) + self.claims()),
        };
        threads_alone(threads, apart, self.work(spread(holds, all)))
    }

    /// Threads that map and unmap pages of guests, and do nothing else.
    pub fn mapping(&self, threads: usize) -> Scene {
        threads_alone(threads, false, self.work(self.map_parts()))
    }

    /// Mapping a page, and unmapping it.
    fn map_parts(&self) -> Vec<Part> {
        let alone = self.of().maps.alone;
        let mut holds = self.claim(Which::Source).to_vec();
        if self.era == Era::Old {
            holds.push((Which::Maptrack, self.inputs.touch * 2.0));
        }
        let held: f64 = holds.iter().map(|hold| hold.1).sum();
        // The kernel changes the address space for one thread at a time, and has others flush
        // meanwhile.
        let mut parts: Vec<Part> =
            holds.into_iter().map(|(which, time)| Part::Locked(which, ns(time))).collect();
        let rest = alone - held;
        parts.extend(match self.era {
            Era::Old => vec![
                Part::Locked(Which::AddressSpace, ns(rest / 2.0)),
                Part::Flush(Which::AddressSpace, ns(rest / 2.0)),
            ],
            // Many pages are unmapped at once.
            Era::New => vec![Part::Locked(Which::AddressSpace, ns(rest))],
        });
        parts
    }

    /// Guests that read from disks, each one block after the other. `mapped`: the worker maps the
    /// page of each read, for the drive to write to, and copies nothing.
    pub fn reading(&self, guests: usize, workers: usize, mapped: bool, host: Host) -> Scene {
        let Generation { copies, reads, .. } = *self.of();
        let Reads { worker, guest, together } = reads;
        let scale = scale(host, together, worker + guest);
        let parts = if mapped {
            let copy = copies.claimed + (PAGE - 1.0) * copies.byte;
            let rest = Part::Work(ns((worker * scale - copy).max(0.0)));
            std::iter::once(rest).chain(self.map_parts()).collect()
        } else {
            spread(self.claim(Which::Target).to_vec(), worker * scale)
        };
        // A read goes to the worker and back to the same guest.
        let own = Scene::pairs(0, workers, 1, 1);
        Scene {
            guests,
            links: (0..guests).map(|guest| (guest, guest)).collect(),
            limit: Limit::Window(1),
            host,
            // A guest has two threads here, which wake one after the other, and is woken once. The
            // interrupt is a part of the measured read.
            scheduling: scheduling(host, self.inputs.wake / 2.0, 0.0),
            duties: Duties {
                worker: self.work(parts),
                sender: Guest { burst: 0, frame: ns(guest * scale) },
                ..Duties::default()
            },
            frames: READS * guests.max(workers) as u64,
            ..own
        }
    }
}

/// The grant tables of a frame's ends in turn, `count` times.
fn table_of_ends(count: usize) -> impl Iterator<Item = Which> + Clone {
    [Which::Source, Which::Target].into_iter().cycle().take(count)
}

/// `all` nanoseconds, of which those in `holds` are spent under locks.
fn spread(holds: Vec<(Which, f64)>, all: f64) -> Vec<Part> {
    if holds.is_empty() {
        return vec![Part::Work(ns(all))];
    }
    let held: f64 = holds.iter().map(|hold| hold.1).sum();
    let rest = (all - held).max(0.0) / holds.len() as f64;
    let parts = holds
        .into_iter()
        .flat_map(|(which, time)| [Part::Work(ns(rest)), Part::Locked(which, ns(time))]);
    parts.collect()
}

/// Threads of a host, where a sleeping one needs `wake` ns to run, and `notify` ns of the thread
/// that wakes it. Both are for a thread on another CPU. What they take on the same CPU is a part of
/// the costs that were measured there.
fn scheduling(host: Host, wake: f64, notify: f64) -> Scheduling {
    let (wake, notify) = if host == Host::Together { (0.0, 0.0) } else { (wake, notify) };
    Scheduling { slice: ns(SLICE), spin: ns(SPIN), wake: ns(wake), notify: ns(notify) }
}

/// How many times as long work takes on a host as it was measured to with guests on another CPU:
/// `apart` ns in sum there, `together` ns where all threads have one CPU.
fn scale(host: Host, together: f64, apart: f64) -> f64 {
    if host == Host::Together { together / apart.max(1.0) } else { 1.0 }
}

/// A thread for each queue that always has work, and guests that take no time.
fn threads_alone(threads: usize, apart: bool, work: Work) -> Scene {
    let (guests, queues) = if apart { (threads, 1) } else { (1, threads) };
    let links = (0..guests).map(|guest| (guest, guest)).collect();
    let frames = 3_000 * threads as u64;
    Scene {
        guests,
        links,
        duties: Duties { worker: work, ..Duties::default() },
        frames,
        flows: Flows::Even,
        ..Scene::pairs(0, threads, queues, queues * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::tests::some;
    use super::*;
    use simulation::run;

    pub fn near(is: f64, wanted: f64) {
        assert!((is / wanted - 1.0).abs() < 0.02, "{is} is not {wanted}");
    }

    #[test]
    fn one_thread_is_as_fast_as_it_was_measured() {
        let inputs = some();
        for (era, claimed, kept) in [(Era::Old, 230.0, 230.0), (Era::New, 200.0, 80.0)] {
            let costs = Costs::new(&inputs, era);
            near(run(&costs.copying(1, 1, 1.0, false)).rate(), 1e9 / claimed);
            near(run(&costs.copying(1, 4, 1.0, false)).rate() * 4.0, 1e9 / kept);
            near(run(&costs.copying(1, 1, 1001.0, false)).rate(), 1e9 / (claimed + 20.0));
        }
        near(run(&Costs::new(&inputs, Era::Old).mapping(1)).rate(), 1e5);
    }

    #[test]
    fn workers_read_as_fast_as_was_measured_until_guests_are_waited_for() {
        let inputs = some();
        let rate = |era, workers, mapped| {
            run(&Costs::new(&inputs, era).reading(20, workers, mapped, Host::ENDLESS)).rate()
        };
        for era in Era::ALL {
            near(rate(era, 1, false), 1e9 / 4000.0);
            assert!(rate(era, 2, false) > 1.8e9 / 4000.0);
            // A read is at least its own costs and a wake-up long.
            assert!(rate(era, 20, false) < 20e9 / 7000.0);
        }
        assert!(rate(Era::Old, 4, true) < rate(Era::New, 4, true));
        assert!(rate(Era::New, 1, true) < rate(Era::New, 1, false));
    }

    #[test]
    fn threads_of_one_guest_contend_more_than_those_of_several() {
        let inputs = some();
        for era in Era::ALL {
            let rate = |apart| run(&Costs::new(&inputs, era).copying(4, 1, 1.0, apart)).rate();
            assert!(rate(true) > 1.2 * rate(false), "{era:?}: {} and {}", rate(true), rate(false));
        }
    }

    #[test]
    fn only_the_old_design_flushes() {
        let inputs = some();
        let rate = |era, threads| run(&Costs::new(&inputs, era).mapping(threads)).rate();
        assert!(rate(Era::Old, 4) < 0.7 * rate(Era::Old, 1));
        assert!(rate(Era::New, 4) > 0.9 * rate(Era::New, 1));
    }
}
