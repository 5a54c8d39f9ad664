//! The costs of single operations on a machine: the basis of a prediction, kept in a file so that
//! it can be traced.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The version of the file's format.
const FORMAT: u32 = 3;
/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// Granted pages copied to granted pages, in ns for each copy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copies {
    /// One byte, out of another page each time.
    pub claimed: f64,
    /// One byte, of which four come out of one page, one after the other.
    pub kept: f64,
    /// For each byte more.
    pub byte: f64,
    /// A thousand bytes, by each of two threads at once, each with its own guest.
    pub apart: f64,
    /// A thousand bytes, by each of two threads at once, both with the same guest.
    pub together: f64,
}

/// Granted pages mapped and unmapped, in ns for each page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Maps {
    /// The time for one thread, alone.
    pub alone: f64,
    /// The time for one thread, while another one computes.
    pub beside: f64,
    /// The CPU time that the other one lost.
    pub stolen: f64,
}

/// Frames carried by one worker on a CPU of its own, in ns for each frame.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// Their length.
    pub bytes: f64,
    /// How many a burst had.
    pub frames_per_burst: f64,
    /// The worker: fetching, finding out where to, delivering, copying.
    pub frame: f64,
    /// The worker: publishing rings, interrupts included.
    pub publish: f64,
    /// How many interrupts the worker sent, to either guest.
    pub interrupts: f64,
    /// CPU time of the sender's thread.
    pub sender: f64,
    /// CPU time of the receiver's thread.
    pub receiver: f64,
    /// All CPU time, where the worker and both guests share one CPU.
    pub together: f64,
}

/// Frames between guests whose memory the worker maps, in ns for each frame. The sender and the
/// receiver are one thread, whose time is counted half for each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mapped {
    /// Frames of 64 bytes.
    pub small: Carried,
    /// Frames of nearly 64 KiB.
    pub large: Carried,
}

/// Reads of 4 KB from a disk whose image is in the page cache, of many guests that have one under
/// way each, in ns for each read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reads {
    /// The worker.
    pub worker: f64,
    /// CPU time of the guest's thread.
    pub guest: f64,
    /// All CPU time, where the worker and all guests share one CPU.
    pub together: f64,
}

/// Fitted: how long a lock, or the data under it, takes from one CPU to another, in ns.
/// See docs/lab-model.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Handovers {
    /// Data that all guests share.
    pub shared: f64,
    /// Data of one guest.
    pub own: f64,
}

/// The costs with one design of the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Copies.
    pub copies: Copies,
    /// Mappings.
    pub maps: Maps,
    /// Frames of 64 bytes.
    pub small: Carried,
    /// Frames of nearly 64 KiB.
    pub large: Carried,
    /// Reads from disks.
    pub reads: Reads,
    /// Fitted to `copies`.
    pub handovers: Handovers,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    format: u32,
    /// When it was measured, in seconds since 1970.
    pub began: u64,
    /// The machine's CPU.
    pub cpu: String,
    /// How many of them.
    pub cpus: usize,
    /// Version of Ringmain.
    pub ringmain: String,
    /// The shortest and the longest time of a fixed piece of work before a measurement, in ms. The
    /// more they differ, the less the measurements are worth.
    pub pace: [f64; 2],
    /// An atomic addition to a number in the cache, in ns.
    pub touch: f64,
    /// A cache line's way from one CPU to another, in ns.
    pub line: f64,
    /// Time from a write to a sleeping thread's descriptor until the thread runs, in ns.
    pub wake: f64,
    /// Time of such a write, in ns.
    pub notify: f64,
    /// How much longer a change of an address space takes where two threads of a process make such
    /// changes at the same time, in ns.
    pub address_space: f64,
    /// Frames between vhost-user guests.
    pub vhost_user: Mapped,
    /// The hypervisor's oldest design.
    pub old: Generation,
    /// Its newest.
    pub new: Generation,
}

/// How many times longer than at best the same work may take while inputs are measured.
const STEADIEST: f64 = 1.25;

/// A file of inputs that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// The file cannot be read or written.
    #[error("cannot use {path}: {source}{}", if source.kind() == io::ErrorKind::NotFound { "; measure first: ringmain-lab model --measure" } else { "" })]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{path} is not what `ringmain-lab model --measure` writes: {why}")]
    Content {
        /// Which.
        path: String,
        /// The problem.
        why: String,
    },
}

/// Properties of a machine beside its costs.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its CPU.
    pub cpu: String,
    /// How many of them.
    pub cpus: usize,
    /// See [`Inputs::pace`].
    pub pace: [f64; 2],
    /// Its times.
    pub times: Times,
}

/// See the fields of [`Inputs`] with these names.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "see Inputs")]
pub struct Times {
    pub touch: f64,
    pub line: f64,
    pub wake: f64,
    pub notify: f64,
    pub address_space: f64,
}

impl Inputs {
    /// The inputs from these measurements.
    pub fn new(
        began: u64,
        machine: Machine,
        [old, new]: [Generation; 2],
        vhost_user: Mapped,
    ) -> Inputs {
        let Machine { cpu, cpus, pace, times } = machine;
        let Times { touch, line, wake, notify, address_space } = times;
        let ringmain = env!("CARGO_PKG_VERSION").into();
        Inputs {
            format: FORMAT,
            began,
            cpu,
            cpus,
            ringmain,
            pace,
            touch,
            line,
            wake,
            notify,
            address_space,
            vhost_user,
            old,
            new,
        }
    }

    /// Why the measurements allow no prediction, if they do not.
    pub fn doubt(&self) -> Option<String> {
        let [least, most] = self.pace;
        if most > least * STEADIEST {
            let percent = (most / least - 1.0) * 100.0;
            return Some(format!(
                "the same work took up to {percent:.0} % longer during the measurement, because \
                others used the machine or the CPU was throttled"
            ));
        }
        for (design, generation) in [("oldest", &self.old), ("newest", &self.new)] {
            let Handovers { shared, own } = generation.handovers;
            if shared <= 0.0 || own <= 0.0 {
                return Some(format!(
                    "handing a lock from one CPU to another came out as 0 ns with the {design} design, which cannot be"
                ));
            }
        }
        None
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When there is no such file, or it has another format.
    pub fn read(path: &Path) -> Result<Inputs, InputsError> {
        let name = path.display().to_string();
        let failed = |source| InputsError::File { path: name.clone(), source };
        if fs::metadata(path).map_err(failed)?.len() > LONGEST {
            return Err(InputsError::Content { path: name, why: "it is too long".into() });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Inputs::parse(&text).map_err(|why| InputsError::Content { path: name, why })
    }

    fn parse(text: &str) -> Result<Inputs, String> {
        let inputs: Inputs = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let sound = |time: f64| time.is_finite() && (0.0..1e9).contains(&time);
        match inputs.format {
            FORMAT if inputs.times().into_iter().all(sound) => Ok(inputs),
            FORMAT => Err("not all times are between 0 and a second".into()),
            other => Err(format!("format {other}, and {FORMAT} is known")),
        }
    }

    /// All times, to be checked.
    fn times(&self) -> Vec<f64> {
        let Mapped { small, large } = self.vhost_user;
        let own = [self.touch, self.line, self.wake, self.notify, self.address_space];
        let carried = small.times().into_iter().chain(large.times());
        let generations = self.old.times().into_iter().chain(self.new.times());
        own.into_iter().chain(carried).chain(generations).collect()
    }

    /// Writes a file.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn write(&self, path: &Path) -> Result<(), InputsError> {
        let failed = |source| InputsError::File { path: path.display().to_string(), source };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        fs::write(path, text + "\n").map_err(failed)
    }
}

impl Carried {
    fn times(&self) -> [f64; 8] {
        let Carried { bytes, frames_per_burst, frame, publish, .. } = *self;
        let Carried { interrupts, sender, receiver, together, .. } = *self;
        [bytes, frames_per_burst, frame, publish, interrupts, sender, receiver, together]
    }
}

impl Generation {
    /// All of them, to be checked.
    fn times(&self) -> Vec<f64> {
        let Copies { claimed, kept, byte, apart, together } = self.copies;
        let Maps { alone, beside, stolen } = self.maps;
        let Handovers { shared, own } = self.handovers;
        let Reads { worker, guest, together: reads } = self.reads;
        let copies = [claimed, kept, byte, apart, together];
        let others = [alone, beside, stolen, shared, own, worker, guest, reads];
        let carried = self.small.times().into_iter().chain(self.large.times());
        copies.into_iter().chain(others).chain(carried).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine with round figures.
    pub fn some() -> Inputs {
        let copies =
            Copies { claimed: 200.0, kept: 80.0, byte: 0.02, apart: 300.0, together: 700.0 };
        let maps = Maps { alone: 3000.0, beside: 4000.0, stolen: 100.0 };
        let small = Carried {
            bytes: 64.0,
            frames_per_burst: 64.0,
            frame: 300.0,
            publish: 10.0,
            interrupts: 0.0,
            sender: 100.0,
            receiver: 90.0,
            together: 500.0,
        };
        let large = Carried {
            bytes: 64_000.0,
            frames_per_burst: 4.0,
            frame: 6000.0,
            sender: 1000.0,
            receiver: 3000.0,
            together: 10_000.0,
            ..small
        };
        let new = Generation {
            copies,
            maps,
            small,
            large,
            reads: Reads { worker: 4000.0, guest: 3000.0, together: 7000.0 },
            handovers: Handovers { shared: 50.0, own: 100.0 },
        };
        let maps = Maps { alone: 10_000.0, beside: 29_000.0, stolen: 6000.0 };
        let old = Generation { copies: Copies { claimed: 230.0, ..copies }, maps, ..new };
        let times =
            Times { touch: 6.0, line: 40.0, wake: 5000.0, notify: 1000.0, address_space: 100.0 };
        let machine = Machine { cpu: "some".into(), cpus: 2, pace: [2.7, 2.8], times };
        let half = |it: Carried| Carried { frame: it.frame / 2.0, publish: 5.0, ..it };
        let mapped = Mapped { small: half(small), large: half(large) };
        Inputs::new(1, machine, [old, new], mapped)
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/inputs.json");
        some().write(&path).unwrap();
        assert_eq!(Inputs::read(&path).unwrap(), some());
    }

    #[test]
    fn inputs_that_failed_to_measure_are_doubted() {
        assert_eq!(some().doubt(), None);
        let wandering = Inputs { pace: [2.0, 3.0], ..some() };
        assert!(wandering.doubt().unwrap().contains("50 % longer"));
        let mut free = some();
        free.new.handovers.own = 0.0;
        assert!(free.doubt().unwrap().contains("0 ns with the newest"));
    }

    #[test]
    fn other_files_are_refused_in_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("inputs.json");
        let said = Inputs::read(&path).unwrap_err().to_string();
        assert!(said.contains("--measure"), "{said}");
        let mut endless = some();
        endless.old.maps.beside = 1e300;
        let other = Inputs { format: 9, ..some() };
        let texts = [endless, other].map(|inputs| serde_json::to_string(&inputs).unwrap());
        for text in texts.iter().map(String::as_str).chain(["", "[]", "{\"format\": 1}"]) {
            fs::write(&path, text).unwrap();
            let said = Inputs::read(&path).unwrap_err().to_string();
            assert!(said.contains("is not what") && said.lines().count() == 1, "{said}");
        }
    }
}
