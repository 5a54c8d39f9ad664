//! The demonstration without virtual machines: both guests are processes, in network namespaces of
//! their own, behind paravirtual interfaces of the daemon's embedded hypervisor.

use super::point::{self, Countdown, Point, Sample};
use super::site::{Counts, queues};
use super::{ADDRESSES, Args, DemoError, QUEUES, TIMEOUT};
use crate::daemon::{Daemon, DaemonError};
use crate::guest_process::{GuestProcess, GuestProcessSpec};
use crate::progress::Progress;
use control::api::PortProfile;
use load::cpu::Snapshot;
use std::path::Path;
use std::time::Duration;

/// How long it is looked where the time goes: shorter than the streams run on after they were
/// counted.
const PROFILE: Duration = Duration::from_secs(1);

const NAMES: [&str; 2] = ["sender", "receiver"];

/// Starts a daemon, and measures with each number of queues; a guest has as many as it came with,
/// so each time new ones come.
pub(super) fn measure(args: &Args, progress: &Progress) -> Result<Vec<Point>, DemoError> {
    let stage = progress.stage("starting Ringmain");
    let binary = super::find(&args.program)?;
    let daemon = Daemon::start(&binary, |dir| config(dir, args.workers), None)?;
    stage.done("");
    QUEUES.iter().map(|queues| one(args, &binary, &daemon, *queues, progress)).collect()
}

fn config(dir: &Path, workers: Option<u16>) -> String {
    format!(
        "{}[[port]]\nname = \"guests\"\nkind = \"embedded\"\nsocket = \"{}\"\nqueues = {}\n",
        super::workers(workers),
        dir.join("guests.sock").display(),
        super::MOST_QUEUES
    )
}

fn one(
    args: &Args,
    binary: &Path,
    daemon: &Daemon,
    queues: u16,
    progress: &Progress,
) -> Result<Point, DemoError> {
    let plural = if queues == 1 { "queue" } else { "queues" };
    let stage = progress.stage(format!("{} streams over {queues} {plural}", args.streams));
    let start = |n: usize, command: &[&str]| {
        let plain = GuestProcessSpec::new(binary, daemon.dir(), NAMES[n], ADDRESSES[n]);
        let spec = GuestProcessSpec { queues, vcpus: args.cpus.min(queues), ..plain };
        GuestProcess::start(&spec, command)
    };
    let mut receiver = start(1, &["iperf", "-s"])?;
    receiver.wait_for("Server listening", TIMEOUT)?;
    let total = point::WARM_UP + Duration::from_secs(args.seconds.into());
    let time = format!("{:.1}", (total + point::WARM_UP).as_secs_f64());
    let streams = args.streams.to_string();
    let mut sender =
        start(0, &["iperf", "-c", ADDRESSES[1], "-P", &streams, "-t", &time, "-f", "m"])?;
    sender.wait_for("Client connecting", TIMEOUT)?;

    let countdown = Countdown::new(total, &stage);
    countdown.sleep_until(point::WARM_UP)?;
    let pids: Vec<u32> =
        std::iter::once(daemon.id()).chain(sender.ids()).chain(receiver.ids()).collect();
    let (cpu, counts) = (Snapshot::now(&pids), counts(daemon)?);
    countdown.sleep_until(total)?;
    let (cpu, counts) = (Snapshot::now(&pids).since(&cpu), self::counts(daemon)?.since(&counts));
    let profile = profile(daemon)?;
    let said = sender.end(TIMEOUT)?;
    let daemon = cpu.of.first().copied();
    let point = Point {
        profile,
        ..Point::new(
            queues,
            said,
            &Sample { daemon, others: cpu.others + cpu.stolen, beyond: None, guests: None, counts },
        )?
    };
    stage.done(&format!("{} Gb/s", point.rate()));
    Ok(point)
}

/// The profile of the receiver's frames, taken while the streams continue for a moment.
fn profile(daemon: &Daemon) -> Result<Option<PortProfile>, DemoError> {
    let profile = daemon.client().profile(PROFILE).map_err(DaemonError::from)?;
    Ok(profile.ports.into_iter().find(|port| port.name == format!("guests/{}", NAMES[1])))
}

fn counts(daemon: &Daemon) -> Result<Counts, DemoError> {
    let stats = daemon.stats()?;
    let of =
        |name: &str| queues(stats.ports.iter().find(|port| port.name == format!("guests/{name}")));
    Ok(Counts { sender: of(NAMES[0]), receiver: of(NAMES[1]) })
}
