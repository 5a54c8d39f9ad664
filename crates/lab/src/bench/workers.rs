//! Two workers against one, each with guests of its own on its own CPU.
//!
//! On two CPUs each worker shares its CPU with the guests that feed it: one thread alternates
//! between a pair of guests and a worker, one burst each. Ports, rings, workers, fabric and switch
//! are the daemon's, and both threads use the same fabric and switch. The rate of both at the same
//! time, against the rate of each alone, shows how much workers delay each other.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use load::cpu::{self, Snapshot};
use load::{Clock, Endpoint};
use network::fabric::{Fabric, Workers};
use network::manual::ManualWorker;
use ring::split::driver::SplitDriver;
use tempfile::TempDir;
use vhost_user::net::{Port, PortConfig};

use super::point::Kind;
use super::state::State;
use super::tally::{Run, Tally, Who};
use super::{Args, BenchError};
use crate::interrupt;
use crate::progress::Progress;
use crate::statistics::turns;

/// How often a disturbed run is tried again before it is kept.
const RETRIES: u32 = 4;

/// The time that runs before anything is counted.
const WARM_UP: Duration = Duration::from_millis(100);

/// Measures the points that consist of workers.
///
/// # Errors
/// When the workers or their guests cannot be created, or the user interrupts. Runs that fail are
/// noted.
pub(super) fn measure(
    args: &Args,
    tallies: &mut [Tally],
    progress: &Progress,
) -> Result<(), BenchError> {
    let Some(tally) = tallies.iter_mut().find(|tally| tally.point.kind == Kind::Workers) else {
        return Ok(());
    };
    let stage = progress.stage(tally.point.title);
    let mut pair = match Pair::start([args.generator_cpu, args.worker_cpu]) {
        Ok(pair) => pair,
        Err(error) => {
            tally.failures.push(error.to_string());
            return Ok(());
        }
    };
    for number in 0..args.runs {
        let all = if args.alone { vec![Who::Ringmain] } else { vec![Who::Ringmain, Who::Peer] };
        for who in turns(all, number) {
            round(args, &mut pair, (who, number), tally)?;
        }
    }
    tally.failures.extend(pair.fault());
    stage.done("");
    Ok(())
}

/// One run, again when something disturbed it.
fn round(
    args: &Args,
    pair: &mut Pair,
    (who, round): (Who, u32),
    tally: &mut Tally,
) -> Result<(), BenchError> {
    let look = || {
        State::look([args.generator_cpu, args.worker_cpu])
            .map_err(|source| BenchError::Start { what: "look at the CPUs", source })
    };
    for attempt in 0..=RETRIES {
        if interrupt::asked() {
            return Err(BenchError::Interrupted);
        }
        let (state, before) = (look()?, Snapshot::now(&[std::process::id()]));
        let rate = match who {
            Who::Ringmain => pair.together(args.seconds),
            _ => pair.alone(args.seconds),
        };
        let shares = Snapshot::now(&[std::process::id()]).since(&before);
        let disturbed = shares.others.max(shares.stolen) * 100.0 > args.disturbed_above
            || !look()?.is_like(&state);
        match rate {
            Ok(_) if disturbed && attempt < RETRIES => tally.repeated += 1,
            Ok(rate) => {
                tally.runs.push(Run { who, round, figures: vec![rate / 1e6], state, disturbed });
                break;
            }
            Err(error) => {
                tally.failures.push(format!("{who:?}: {error}"));
                break;
            }
        }
    }
    Ok(())
}

/// Two stations over one fabric.
struct Pair {
    stations: [TestGuest; 2],
    devices: Vec<Port>,
    clock: Clock,
    _dir: TempDir,
}

/// A worker, the guests that feed it, and the CPU of both.
struct TestGuest {
    worker: ManualWorker,
    guests: Vec<Endpoint<SplitDriver>>,
    cpu: usize,
}

impl Pair {
    fn start(cpus: [usize; 2]) -> Result<Self, BenchError> {
        let failed = |what| move |source| BenchError::Start { what, source };
        let dir = tempfile::Builder::new()
            .prefix("ringmain-")
            .tempdir()
            .map_err(failed("make a folder"))?;
        let workers = Workers { count: 2, ..Workers::default() };
        let (fabric, workers) = Fabric::manual(&workers).map_err(failed("make workers"))?;
        let [mut one, mut two] = <[ManualWorker; 2]>::try_from(workers)
            .map_err(|_| failed("make workers")(io::Error::other("there are not two of them")))?;
        let fabric = Arc::new(fabric);
        let sockets = ["a", "b", "c", "d"].map(|name| dir.path().join(name));
        let clock = Clock::start();
        let connect = || {
            let start =
                |socket: &PathBuf| Port::start(Arc::clone(&fabric), PortConfig::new(socket, 1));
            let devices = sockets.iter().map(start).collect::<Result<Vec<_>, _>>();
            let devices =
                devices.map_err(|error| failed("start a port")(io::Error::other(error)))?;
            let line = format!(
                "--ports {} --size 64",
                sockets.each_ref().map(|path| path.display().to_string()).join(",")
            );
            let options = load::Args::from_words(line.split_whitespace());
            let options = options.map_err(|error| load::Error::Options(error.to_string()))?;
            let guests = load::connect_guests(&options, clock, &AtomicBool::new(false))?;
            Ok::<_, BenchError>((devices, guests.endpoints))
        };
        let (devices, mut first) = one.run_while(|| two.run_while(connect))?;
        let second = first.split_off(2);
        let places: Vec<_> = devices.iter().map(|device| fabric.placement(device.port())).collect();
        let stations = [(one, first, cpus[0]), (two, second, cpus[1])];
        let stations = stations.map(|(worker, guests, cpu)| TestGuest { worker, guests, cpu });
        let pair = Self { stations, devices, clock, _dir: dir };
        match places == [[(0, 0)], [(0, 0)], [(0, 1)], [(0, 1)]] {
            true => Ok(pair),
            false => Err(failed("give each worker a pair of guests")(io::Error::other(format!(
                "they are at {places:?}"
            )))),
        }
    }

    /// Frames per second of both at the same time.
    fn together(&mut self, seconds: f64) -> Result<f64, BenchError> {
        carry(&mut self.stations, self.clock, seconds)
    }

    /// Frames per second of one of them, on average, while the other does nothing.
    fn alone(&mut self, seconds: f64) -> Result<f64, BenchError> {
        let [one, two] = &mut self.stations;
        let rates =
            [one, two].map(|station| carry(std::slice::from_mut(station), self.clock, seconds));
        let [one, two] = rates;
        Ok((one? + two?) / 2.0)
    }

    /// The fault of a frame, if any.
    fn fault(&mut self) -> Option<String> {
        let guests = self.stations.iter_mut().flat_map(|station| &mut station.guests);
        let mut counts =
            guests.filter_map(|guest| guest.receiver().map(|receiver| receiver.counts()));
        let wrong = counts.any(|counts| counts.corrupt + counts.reordered + counts.duplicate > 0);
        wrong.then(|| "frames were wrong, late or twice".into())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let [one, two] = &mut self.stations;
        let devices = std::mem::take(&mut self.devices);
        // Ports can be removed only while their workers run.
        one.worker.run_while(|| two.worker.run_while(|| drop(devices)));
    }
}

/// Lets stations work at the same time, each on its CPU; frames per second of all.
fn carry(stations: &mut [TestGuest], clock: Clock, seconds: f64) -> Result<f64, BenchError> {
    let gate = Barrier::new(stations.len());
    thread::scope(|scope| {
        let gate = &gate;
        let start = |station| scope.spawn(move || TestGuest::carry(station, clock, seconds, gate));
        let threads: Vec<_> = stations.iter_mut().map(start).collect();
        let rates = threads.into_iter().map(|thread| match thread.join() {
            Ok(rate) => rate,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        rates.sum()
    })
}

impl TestGuest {
    fn carry(&mut self, clock: Clock, seconds: f64, gate: &Barrier) -> Result<f64, BenchError> {
        gate.wait();
        cpu::pin(self.cpu).map_err(|error| load::Error::Cpu { cpu: self.cpu, error })?;
        self.run_guests(clock, WARM_UP)?;
        let (began, before) = (Instant::now(), self.received());
        self.run_guests(clock, Duration::from_secs_f64(seconds))?;
        Ok((self.received() - before) as f64 / began.elapsed().as_secs_f64())
    }

    /// Repeats: guests send a burst, the worker makes a round, guests take the frames that came.
    fn run_guests(&mut self, clock: Clock, time: Duration) -> Result<(), load::Error> {
        let mut now = Instant::now();
        let end = now + time;
        while now < end {
            for guest in &mut self.guests {
                guest.transmit(clock)?;
            }
            self.worker.run_once(now);
            for guest in &mut self.guests {
                guest.receive(clock)?;
            }
            now = Instant::now();
        }
        Ok(())
    }

    fn received(&mut self) -> u64 {
        let counts =
            self.guests.iter_mut().filter_map(|guest| Some(guest.receiver()?.counts().good));
        counts.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_intact_alone_and_together() {
        let mut pair = Pair::start([0, 0]).unwrap();
        assert!(pair.alone(0.05).unwrap() > 0.0);
        assert!(pair.together(0.05).unwrap() > 0.0);
        for station in &mut pair.stations {
            assert!(station.received() > 0);
        }
        assert_eq!(pair.fault(), None);
    }
}
