//! Ringmain beside the kernel's xen-netback with a Linux bridge: the same two stock guests on a
//! real Xen host, alternating, in one invocation.
//!
//! The host's time is the number of instructions that it executes, all domains and the hypervisor
//! together on its one processor. A throughput is therefore a number of instructions for each byte
//! on its whole way. It repeats within a percent, whatever else this machine does, and contains no
//! effects of caches.

mod result;

use std::path::PathBuf;
use std::time::Duration;

use super::{BenchError, catch_signals, iperf, unix_time, write};
use crate::folders::folder;
use crate::guest::{GuestError, Shell};
use crate::interrupt;
use crate::program::Program;
use crate::progress::{Progress, Stage};
use crate::xen::{Dom0, Domain, DomainSpec, Netback, Options, Testbed};
use result::{Comparison, Figure, Tally};

/// Longest boot and longest command, in CPU time of QEMU: a busy machine makes a run slow, and does
/// not end it. Two guests that boot take five minutes of a slow machine, and longer where the other
/// thread of the core is busy.
const TIMEOUT: Duration = Duration::from_secs(1200);
/// CPU time of QEMU that a second of the host's own time may take, in seconds.
const SLOWNESS: u32 = 60;
/// Nanoseconds that an instruction takes on the host.
const INSTRUCTION: f64 = 2.0;
/// Streams that run at the same time.
const STREAMS: [u16; 2] = [1, 8];
/// The guests' addresses.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const BYTES_PER_MB: f64 = 1e6;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Runs of each point on each system, each on a host that was booted for it
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Seconds of traffic in each run, by the Xen host's clock; each takes several real seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub seconds: u16,

    /// Numbers of queues that both systems offer, one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 4],
        value_parser = clap::value_parser!(u16).range(1..=16))]
    pub queues: Vec<u16>,

    /// Folder with the Xen host, filled by scripts/deps
    #[arg(long, value_name = "DIR", env = "RINGMAIN_CACHE", default_value = "CLONE/.cache", value_parser = folder)]
    pub cache: PathBuf,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-xen", value_parser = folder)]
    pub out: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// Compares. The table goes to standard output, the result file to `args.out`, progress to standard
/// error.
///
/// # Errors
/// When the Xen host is not built, or does not come up, or the user interrupts.
pub fn run(args: &Args) -> Result<(), BenchError> {
    catch_signals()?;
    let testbed = Testbed::find(&args.cache)?;
    let began = unix_time();
    let progress = Progress::new();
    let points = args.queues.iter().flat_map(|&queues| STREAMS.map(|streams| (queues, streams)));
    let mut tallies: Vec<Tally> =
        points.map(|(queues, streams)| Tally::new(queues, streams)).collect();
    for number in 0..args.runs {
        for system in [Netback::Kernel, Netback::Ringmain] {
            let stage =
                progress.stage(format!("{}, run {} of {}", system.name(), number + 1, args.runs));
            measure(args, &testbed, system, &stage, &mut tallies)?;
            stage.done("");
        }
    }
    let comparison = Comparison::new(began, args.runs, args.seconds, &tallies);
    let file = write(&args.out, began, &comparison)?;
    println!("\n{}\nresults: {}", comparison.table(), file.display());
    Ok(())
}

/// One run of all points on one system.
fn measure(
    args: &Args,
    testbed: &Testbed,
    system: Netback,
    stage: &Stage,
    tallies: &mut [Tally],
) -> Result<(), BenchError> {
    stage.at("the host boots");
    let dom0 = Dom0::boot(testbed, &Options { counted: true, ..Options::default() })?;
    let most = args.queues.iter().copied().max().unwrap_or(1);
    let _service = system.set_up(&dom0, &args.program, most, "")?;
    for &queues in &args.queues {
        stage.at(format!("guests with {queues} queues boot"));
        let [sender, _receiver] = guests(&dom0, system, queues)?;
        for tally in tallies.iter_mut().filter(|tally| tally.queues == queues) {
            if interrupt::asked() {
                return Err(BenchError::Interrupted);
            }
            stage.at(format!("{queues} queues, {} streams", tally.streams));
            let figure = once(&dom0, &sender, tally.streams, args.seconds)?;
            match system {
                Netback::Ringmain => tally.ringmain.push(figure),
                Netback::Kernel => tally.kernel.push(figure),
            }
        }
    }
    Ok(())
}

/// Two guests that can reach each other.
fn guests(dom0: &Dom0, system: Netback, queues: u16) -> Result<[Domain; 2], GuestError> {
    let create = |name: &str| {
        let spec = DomainSpec { max_queues: Some(queues), memory: 192, ..DomainSpec::new(name) };
        dom0.create(&spec.vif(system.vif()))
    };
    let guests = [create("sender")?, create("receiver")?];
    for (guest, address) in guests.iter().zip(ADDRESSES) {
        guest.ready(TIMEOUT)?;
        guest
            .must(&format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up"), TIMEOUT)?;
    }
    let [sender, receiver] = &guests;
    receiver.must("iperf -s >/dev/null 2>&1 &", TIMEOUT)?;
    sender
        .must(&format!("until ping -c 1 -W 1 {} >/dev/null; do :; done", ADDRESSES[1]), TIMEOUT)?;
    Ok(guests)
}

/// One run of one point.
fn once(dom0: &Dom0, sender: &Domain, streams: u16, seconds: u16) -> Result<Figure, GuestError> {
    let command = format!("iperf -c {} -P {streams} -t {seconds} -f k", ADDRESSES[1]);
    let before = cpu_seconds(dom0)?;
    let said = sender.must(&command, TIMEOUT + Duration::from_secs(seconds.into()) * SLOWNESS)?;
    let dom0_seconds = cpu_seconds(dom0)? - before;
    let (bytes, bits_per_second) =
        iperf::sum(&said).ok_or_else(|| failed("sender", command, said))?;
    let instructions = dom0_seconds * 1e9 / INSTRUCTION;
    Ok(Figure { mbps: bits_per_second / 1e6, instructions: instructions / (bytes / BYTES_PER_MB) })
}

/// How long dom0 has run so far, calls of the hypervisor included.
fn cpu_seconds(dom0: &Dom0) -> Result<f64, GuestError> {
    let command = "xl list Domain-0";
    let said = dom0.must(command, TIMEOUT)?;
    let last = said.split_whitespace().next_back();
    last.and_then(|word| word.parse().ok())
        .ok_or_else(|| failed("dom0", command.into(), said.clone()))
}

fn failed(name: &str, command: String, text: String) -> GuestError {
    GuestError::Failed { name: name.into(), command, code: 0, text }
}
