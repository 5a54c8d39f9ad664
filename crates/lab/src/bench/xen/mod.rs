//! Ringmain beside the kernel's xen-netback with a Linux bridge: the same two stock guests on the
//! same real Xen host, whose vifs the two systems serve by turns.
//!
//! The host's time is the number of instructions that it executes, all domains and the hypervisor
//! together on its one processor. A throughput is therefore a number of instructions for each byte
//! on its whole way. It repeats within a percent, whatever else this machine does, and contains no
//! effects of caches.

pub mod disk;
pub mod grant_copies;
mod pair;
mod result;

use std::path::PathBuf;
use std::time::Duration;

use super::{BenchError, catch_signals, iperf, unix_time, write};
use crate::folders::folder;
use crate::guest::{GuestError, Shell};
use crate::interrupt;
use crate::program::Program;
use crate::progress::{Progress, Stage};
use crate::xen::{Dom0, Domain, DomainSpec, Kind, Netback, Options, Testbed};
use result::{Comparison, Figure, Tally};

/// Longest boot and longest command, in CPU time of QEMU: a busy machine makes a run slow, and does
/// not end it. Two guests that boot take five minutes of a slow machine, and longer where the other
/// thread of the core is busy. Thus they boot once.
const TIMEOUT: Duration = Duration::from_secs(1200);
/// CPU time of QEMU that a second of the host's own time may take, in seconds.
const SLOWNESS: u32 = 60;
/// Nanoseconds that an instruction takes on the host.
const INSTRUCTION: f64 = 2.0;
/// Processors of a guest. With more, each waits for the others now and then, in a loop, and the
/// only processor of the host executes that loop in place of what is waited for. Such loops say
/// nothing of backends, and QEMU needs most of its own time for them: it leaves translated code at
/// each `pause`.
const CPUS: u16 = 1;
/// Streams that run at the same time.
const STREAMS: [u16; 2] = [1, 8];
/// Memory of a guest, in MiB. The frontend of Linux 6.1 loses a megabyte for each queue whenever it
/// disconnects.
const MEMORY: u32 = 256;
/// The guests' addresses.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const BYTES_PER_MB: f64 = 1e6;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Runs of each point on each system
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Seconds of traffic in each run, by the Xen host's clock. A second of that clock takes
    /// several seconds of real time
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub seconds: u16,

    /// Numbers of queues that both systems offer; each number is measured in turn
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 4],
        value_parser = clap::value_parser!(u16).range(1..=16))]
    pub queues: Vec<u16>,

    /// How dom0 is virtualised
    #[arg(long, value_name = "KIND", value_enum, default_value_t)]
    pub dom0: Kind,

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
    let stage = progress.stage("the host boots");
    let dom0 = Dom0::boot(&testbed, &Options::counted(args.dom0))?;
    stage.done("");
    let stage = progress.stage("grant copies alone");
    let grant_copies = grant_copies(&dom0)?;
    stage.done(&format!("{:.0} thousand instructions per MB", grant_copies / 1e3));
    let stage = progress.stage("the guests boot");
    let host = Host::with_guests(dom0)?;
    stage.done("");
    for number in 0..args.runs {
        for system in [Netback::Kernel, Netback::Ringmain] {
            let stage =
                progress.stage(format!("{}, run {} of {}", system.name(), number + 1, args.runs));
            measure(args, &host, system, &stage, &mut tallies)?;
            stage.done("");
        }
    }
    let comparison =
        Comparison::new(began, args.dom0, args.runs, args.seconds, grant_copies, &tallies);
    let file = write(&args.out, began, &comparison)?;
    println!("\n{}\nresults: {}", comparison.table(), file.display());
    Ok(())
}

/// One run of all points on one system.
fn measure(
    args: &Args,
    host: &Host,
    system: Netback,
    stage: &Stage,
    tallies: &mut [Tally],
) -> Result<(), BenchError> {
    let most = args.queues.iter().copied().max().unwrap_or(1);
    let service = system.set_up(&host.dom0, &args.program, most, "")?;
    for &queues in &args.queues {
        stage.at(format!("guests connect by {queues} queues"));
        host.connect(system, queues)?;
        for tally in tallies.iter_mut().filter(|tally| tally.queues == queues) {
            if interrupt::asked() {
                return Err(BenchError::Interrupted);
            }
            stage.at(format!("{queues} queues, {} streams", tally.streams));
            let figure = host.once(tally.streams, args.seconds)?;
            match system {
                Netback::Ringmain => tally.ringmain.push(figure),
                Netback::Kernel => tally.kernel.push(figure),
            }
        }
        host.disconnect()?;
    }
    drop(service);
    Ok(system.tear_down(&host.dom0)?)
}

/// The Xen host, with two guests that have no vif between the runs.
struct Host {
    dom0: Dom0,
    sender: Domain,
    receiver: Domain,
}

impl Host {
    fn with_guests(dom0: Dom0) -> Result<Host, GuestError> {
        let create =
            |name| dom0.create(&DomainSpec { cpus: CPUS, memory: MEMORY, ..DomainSpec::new(name) });
        let (sender, receiver) = (create("sender")?, create("receiver")?);
        [&sender, &receiver].into_iter().try_for_each(|guest| guest.ready(TIMEOUT))?;
        receiver.must("iperf -s >/dev/null 2>&1 &", TIMEOUT)?;
        Ok(Host { dom0, sender, receiver })
    }

    /// Attaches a vif with this many queues to each guest, and waits until they reach each other.
    fn connect(&self, system: Netback, queues: u16) -> Result<(), GuestError> {
        // Words where `xl.cfg` has commas.
        let vif = system.vif().replace(',', " ");
        for (guest, address) in [&self.sender, &self.receiver].into_iter().zip(ADDRESSES) {
            guest.load_frontend(queues, TIMEOUT)?;
            self.dom0.must(&format!("xl network-attach {} {vif}", guest.id()), TIMEOUT)?;
            let configure = format!(
                "until [ -d /sys/class/net/eth0 ]; do usleep 50000; done
                ip addr add {address}/24 dev eth0 && ip link set eth0 up"
            );
            guest.must(&configure, TIMEOUT)?;
        }
        let ping = format!("until ping -c 1 -W 1 {} >/dev/null; do :; done", ADDRESSES[1]);
        self.sender.must(&ping, TIMEOUT).map(drop)
    }

    /// Detaches the vifs.
    fn disconnect(&self) -> Result<(), GuestError> {
        [&self.sender, &self.receiver].into_iter().try_for_each(|guest| guest.detach_vifs(TIMEOUT))
    }

    /// One run of one point.
    fn once(&self, streams: u16, seconds: u16) -> Result<Figure, GuestError> {
        let command = format!("iperf -c {} -P {streams} -t {seconds} -f k", ADDRESSES[1]);
        let before = instructions(&self.dom0)?;
        let limit = TIMEOUT + Duration::from_secs(seconds.into()) * SLOWNESS;
        let said = self.sender.must(&command, limit)?;
        let used = instructions(&self.dom0)? - before;
        let (bytes, bits_per_second) =
            iperf::sum(&said).ok_or_else(|| failed("sender", command, said))?;
        Ok(Figure { mbps: bits_per_second / 1e6, instructions: used / (bytes / BYTES_PER_MB) })
    }
}

/// Instructions of dom0 for 10^6 bytes of grant copies, with nothing else. No guest is there yet,
/// so the time that passes is that of dom0.
fn grant_copies(dom0: &Dom0) -> Result<f64, GuestError> {
    let program = std::env::current_exe()
        .map_err(|source| GuestError::Channel { what: "cannot find this program", source })?;
    dom0.install_program(&program, "ringmain-lab")?;
    let command = "ringmain-lab grant-copies";
    let said = dom0.must(command, TIMEOUT)?;
    match said.trim().parse::<f64>() {
        Ok(nanos) => Ok(nanos / INSTRUCTION),
        Err(_) => Err(failed("dom0", command.into(), said)),
    }
}

/// Instructions that dom0 has executed so far, calls of the hypervisor included.
fn instructions(dom0: &Dom0) -> Result<f64, GuestError> {
    let command = "xl list Domain-0";
    let said = dom0.must(command, TIMEOUT)?;
    let last = said.split_whitespace().next_back();
    let seconds: f64 = last
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| failed("dom0", command.into(), said.clone()))?;
    Ok(seconds * 1e9 / INSTRUCTION)
}

fn failed(name: &str, command: String, text: String) -> GuestError {
    GuestError::Failed { name: name.into(), command, code: 0, text }
}
