//! Frames between vhost-user guests of a daemon: how many come in a second, and the cost of each
//! for the worker and for the guests. The guests are the traffic generator's, with a thread for
//! each pair, which sleeps when there is nothing to do.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::super::inputs::Carried;
use super::profiled::profiled;
use crate::bench::BenchError;
use crate::bench::embedded::load::Size;
use crate::bench::embedded::site::{WARM_UP, failed};
use crate::daemon::Daemon;
use crate::fixture::{Placement, generator_port, generator_ports};
use hypervisor::embedded::Design;
use load::Report;

/// How long frames are counted.
const TIME: Duration = Duration::from_millis(250);
/// Bytes of a large frame: like those of guests with grants.
const LARGE: u32 = 63_778;
/// Flows of each pair.
const FLOWS: u16 = 8;

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Generating {
    /// The size of the frames.
    pub size: Size,
    /// Workers, and pairs of guests with one queue each.
    pub workers: u16,
}

impl Generating {
    /// Frames in a second.
    ///
    /// # Errors
    /// When something does not start, or the daemon breaks a rule.
    pub fn rate(&self, placement: Placement) -> Result<f64, BenchError> {
        let daemon = self.daemon(placement)?;
        Ok(self.send(&daemon, placement, TIME)?.mpps * 1e6)
    }

    /// The cost of each frame.
    ///
    /// # Errors
    /// As before.
    pub(super) fn profile(&self) -> Result<Carried, BenchError> {
        let together = 1e9 / self.rate(Placement::Together)?.max(1.0);
        let daemon = self.daemon(Placement::Apart)?;
        let (report, carried) = std::thread::scope(|scope| {
            let sending = scope.spawn(|| self.send(&daemon, Placement::Apart, TIME * 2));
            // Guests of one queue begin at once.
            std::thread::sleep(WARM_UP + TIME / 2);
            let carried = profiled(&daemon, &generator_ports(0), TIME)?;
            let report = sending.join().map_err(|_| ended())??;
            Ok::<_, BenchError>((report, carried))
        })?;
        let guest = report.cpu.own / 100.0 * 1e9 / (report.mpps * 1e6).max(1.0);
        Ok(Carried { sender: guest / 2.0, receiver: guest / 2.0, together, ..carried })
    }

    fn daemon(&self, placement: Placement) -> Result<Daemon, BenchError> {
        let config = |dir: &Path| {
            let ports = (0..self.workers).flat_map(generator_ports);
            let ports: String = ports.map(|name| generator_port(dir, &name, 1)).collect();
            let keys = placement.keys(self.workers.into());
            format!("[workers]\ncount = {}\n{keys}{ports}", self.workers)
        };
        Ok(Daemon::with_design(Design::default(), config, None)?)
    }

    /// Sends for `time`.
    fn send(
        &self,
        daemon: &Daemon,
        placement: Placement,
        time: Duration,
    ) -> Result<Report, BenchError> {
        let frames = match self.size {
            Size::Small => "--size 64 --window 256".into(),
            // As many as the receiver's ring holds.
            Size::Large => format!("--tso --size {LARGE} --window 15"),
        };
        let [_, cpus] = placement.cpus(self.workers.into());
        let cpus: String = cpus.iter().map(|cpu| format!("--cpu {cpu} ")).collect();
        let ports: Vec<String> = (0..self.workers)
            .flat_map(generator_ports)
            .map(|name| daemon.dir().join(name).with_extension("sock").display().to_string())
            .collect();
        // All senders connect before the receivers, so both ends of a pair are on the same worker.
        let line = format!(
            "--ports {} --client --interrupts --burst 64 --flows {FLOWS} {frames} --threads {} {cpus}\
             --warm-up {} --duration {}",
            ports.join(","),
            self.workers,
            WARM_UP.as_secs_f64(),
            time.as_secs_f64(),
        );
        let args = load::Args::from_words(line.split_whitespace());
        let failed = failed("send as guests");
        let args = args.map_err(|error| failed(io::Error::other(error.to_string())))?;
        let report = load::run(&args);
        report.map_err(|error| failed(io::Error::other(error.to_string())))
    }
}

fn ended() -> BenchError {
    failed("send as guests")(io::ErrorKind::Other.into())
}
