//! The daemon without and with a thread that sends interrupts for its worker, side by side.
//!
//! The receiving guest sleeps until it is interrupted. The comparison shows the worker's time for a
//! frame, and how long a frame takes. Both daemons carry the same traffic in turn.

use std::io;
use std::path::Path;

use load::cpu::{GENERATOR_CPU, WORKER_CPU};

use super::signals::{free_cpu, thread_cpu};
use super::{BenchError, catch_signals, find};
use crate::daemon::Daemon;
use crate::interrupt;
use crate::program::Program;
use crate::statistics::{Summary, digits, turns};
use crate::table::aligned;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rates of the sender, in frames per second
    #[arg(long, value_name = "PPS,...", value_delimiter = ',', default_values_t = [20_000, 50_000, 100_000, 200_000], value_parser = clap::value_parser!(u32).range(1..))]
    pub rates: Vec<u32>,

    /// Rounds, in each of which both have their turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,

    #[command(flatten)]
    program: Program,
}

/// Who sends the interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Worker,
    Thread,
}

impl Sender {
    const ALL: [Sender; 2] = [Sender::Worker, Sender::Thread];

    fn name(self) -> &'static str {
        match self {
            Sender::Worker => "worker",
            Sender::Thread => "thread",
        }
    }
}

/// What one run showed.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The worker's time for a frame, in us.
    worker: f64,
    /// Interrupts for a frame.
    interrupts: f64,
    /// The share of them that the thread sent, in percent.
    by_thread: f64,
    /// The median time that a frame took, in us.
    latency: f64,
}

/// Measures, and shows the medians.
///
/// # Errors
/// When the daemon cannot be started, a run fails, or the user interrupts.
pub fn table(args: &Args) -> Result<String, BenchError> {
    catch_signals()?;
    let binary = find(&args.program)?;
    let heads = [
        "frames/s",
        "who interrupts",
        "worker, us/frame",
        "interrupts/frame",
        "by thread",
        "p50, us",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    for &rate in &args.rates {
        let mut runs = [Vec::new(), Vec::new()];
        for round in 0..args.runs {
            for (sender, runs) in turns(Sender::ALL.into_iter().zip(&mut runs).collect(), round) {
                runs.push(measure(&binary, sender, rate, args.seconds)?);
            }
        }
        rows.extend(
            Sender::ALL.into_iter().zip(runs).map(|(sender, runs)| row(rate, sender, &runs)),
        );
    }
    let cpus = match free_cpu() {
        Some(cpu) => format!("the thread has CPU {cpu}"),
        None => "the thread shares the guests' CPU, because no CPU is free".to_owned(),
    };
    Ok(format!(
        "{}worker on CPU {WORKER_CPU}, guests on CPU {GENERATOR_CPU}; {cpus}\n",
        aligned(&rows)
    ))
}

fn row(rate: u32, sender: Sender, runs: &[Run]) -> [String; 6] {
    let median = |part: fn(&Run) -> f64| {
        Summary::of(runs.iter().map(part).collect()).map_or("-".into(), |all| digits(all.median))
    };
    [
        rate.to_string(),
        sender.name().to_owned(),
        median(|run| run.worker),
        median(|run| run.interrupts),
        format!("{} %", median(|run| run.by_thread)),
        median(|run| run.latency),
    ]
}

/// One run of a daemon.
fn measure(binary: &Path, sender: Sender, rate: u32, seconds: f64) -> Result<Run, BenchError> {
    let daemon = Daemon::start(binary, |dir| config(dir, sender), None)?;
    let dir = daemon.dir().display();
    let line = format!(
        "--ports {dir}/a.sock,{dir}/b.sock --size 64 --interrupts --rate {rate} --duration {seconds} \
         --warm-up 0.2 --cpu {GENERATOR_CPU}"
    );
    let refused = |error: clap::Error| BenchError::Start {
        what: "start the generator",
        source: io::Error::other(error),
    };
    let options = load::Args::from_words(line.split_whitespace()).map_err(refused)?;
    let report = load::run_until(&options, &interrupt::flag())?;
    if interrupt::asked() {
        return Err(BenchError::Interrupted);
    }
    let stats = daemon.stats()?;
    let frames: u64 = stats.ports.iter().map(|port| port.total.rx_frames).sum();
    let busy: u64 = stats.workers.iter().map(|worker| worker.busy_us).sum();
    let by_thread = stats.interrupt_thread_interrupts.unwrap_or(0);
    let frames = frames.max(1) as f64;
    let latency = report.directions.first().map_or(f64::NAN, |way| way.latency.p50);
    Ok(Run {
        worker: busy as f64 / frames,
        interrupts: report.interrupts as f64 / frames,
        by_thread: 100.0 * by_thread as f64 / report.interrupts.max(1) as f64,
        latency,
    })
}

/// The configuration of the daemon with its sockets in `dir`.
fn config(dir: &Path, sender: Sender) -> String {
    let thread = match sender {
        Sender::Worker => String::new(),
        Sender::Thread => format!("interrupt-cpu = {}\n", thread_cpu()),
    };
    let port = |name| {
        let socket = dir.join(name).with_extension("sock");
        let socket = socket.display();
        format!("[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n")
    };
    format!("[workers]\ncpus = [{WORKER_CPU}]\n{thread}{}{}", port("a"), port("b"))
}
