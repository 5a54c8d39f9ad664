//! The traffic generator's guests behind a daemon with one worker, or behind whoever else listens.

use std::path::Path;

use super::daemon::rest;
use crate::daemon::Daemon;
use crate::experiment::{LabError, Outcome, Setup};
use crate::load::{self, Report};

/// The CPU of the one worker.
pub const WORKER_CPU: usize = 1;
/// The CPU of the generator.
pub const GENERATOR_CPU: usize = 0;

/// A daemon with pairs of vhost-user ports, and one worker on a CPU of its own if there are two.
#[derive(Debug)]
pub struct Rig {
    daemon: Daemon,
    /// The number of the first guest.
    first: u16,
}

impl Rig {
    /// Starts it. `pairs` are pairs of ports, `queues` the queue pairs of each port, `keys` further
    /// lines of `[workers]`.
    ///
    /// # Errors
    /// When the daemon does not start.
    pub fn start(setup: &Setup<'_>, pairs: u16, queues: u16, keys: &str) -> Result<Rig, LabError> {
        let config = |dir: &Path| {
            let port = |name: String| {
                let socket = dir.join(&name).with_extension("sock");
                let socket = socket.display();
                format!(
                    "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\nqueues = {queues}\n"
                )
            };
            let ports: String = (0..pairs).flat_map(ports).map(port).collect();
            format!("[workers]\ncount = 1\n{}{keys}\n{ports}", pinned())
        };
        Ok(Rig { daemon: Daemon::start(&setup.binary, config, None)?, first: 0 })
    }

    /// The same with other guests' addresses, which follow from the number of the first: an even
    /// one.
    pub fn numbered(self, first: u16) -> Rig {
        Rig { first, ..self }
    }

    /// The daemon.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Has the generator play, on one CPU: the first pair with the first of these options, and so
    /// on. Whether frames were whole, in order and accounted for is noted in the outcome.
    ///
    /// # Errors
    /// When options contradict each other, the daemon breaks a rule, or the user interrupts.
    pub fn play(
        &self,
        setup: &Setup<'_>,
        options: &[&str],
        outcome: &mut Outcome,
    ) -> Result<Vec<Report>, LabError> {
        let pid = self.daemon.id();
        let line = |(pair, options): (u16, &&str)| {
            let [a, b] =
                ports(pair).map(|name| self.daemon.dir().join(name).with_extension("sock"));
            let place = format!(
                "--ports {},{} --client --number {}",
                a.display(),
                b.display(),
                self.first + 2 * pair
            );
            format!("{place} --backend-pid {pid} {options}")
        };
        let lines: Vec<String> = (0..).zip(options).map(line).collect();
        let reports = generate(setup, &lines, outcome)?;
        rest(outcome, || self.daemon.stats())?;
        Ok(reports)
    }
}

/// The names of the ports of a pair, the sender's first.
pub fn ports(pair: u16) -> [String; 2] {
    ["from", "to"].map(|end| format!("{end}-{pair}"))
}

/// Has the generator play by these lines of options, all at the same time on its CPU, for as long
/// as a repetition takes. One report for each line. Whether frames were whole and in order is
/// noted.
///
/// # Errors
/// As for [`Rig::play`].
pub fn generate(
    setup: &Setup<'_>,
    lines: &[String],
    outcome: &mut Outcome,
) -> Result<Vec<Report>, LabError> {
    let said = |text: String| LabError::Said { tool: "the generator".into(), text };
    let times =
        format!("--duration {} --warm-up 0.2 --cpu {GENERATOR_CPU}", setup.time.as_secs_f64());
    let read = |line: &String| {
        let line = format!("{line} {times}");
        load::Args::from_words(line.split_whitespace()).map_err(|error| said(error.to_string()))
    };
    let all = lines.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let reports = load::run_together(&all, &crate::interrupt::flag())
        .map_err(|error| said(error.to_string()))?;
    note(outcome, &reports);
    Ok(reports)
}

/// Notes whether all frames were right, and what others took of the machine.
fn note(outcome: &mut Outcome, reports: &[Report]) {
    if let Some(cpu) = reports.first().map(|report| report.cpu) {
        outcome.figure("busy", cpu.own + cpu.backend.unwrap_or_default() + cpu.others);
        (outcome.others, outcome.stolen) = (cpu.others / 100.0, cpu.stolen / 100.0);
    }
    let directions = || reports.iter().flat_map(|report| &report.directions);
    let fault = directions().find_map(|to| to.first_fault.clone());
    let (wrong, twice) = (
        directions().map(|to| to.corrupt).sum::<u64>(),
        directions().map(|to| to.duplicate).sum::<u64>(),
    );
    let seen = fault.unwrap_or_else(|| {
        format!(
            "{} lost, {wrong} wrong, {twice} twice",
            reports.iter().map(Report::lost).sum::<u64>()
        )
    });
    outcome.check("frames whole", wrong + twice == 0, seen);
    let late = directions().map(|to| to.reordered).sum::<u64>();
    outcome.check("frames in order", late == 0, format!("{late} after a later one"));
}

/// The worker's own CPU, if there are two.
fn pinned() -> String {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => String::new(),
        _ => format!("cpus = [{WORKER_CPU}]\n"),
    }
}
