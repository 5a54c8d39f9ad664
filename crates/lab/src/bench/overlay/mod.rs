//! Ringmain's overlay beside the kernel's VXLAN device and bridge, and beside OVS-DPDK: the same
//! frames between guests of two hosts, in turn, in one invocation.
//!
//! The hosts are network namespaces with a pair of virtual interfaces as the wire. A guest of the
//! kernel's hosts is a TAP device in the bridge, which the generator reads and writes as a
//! hypervisor's backend does. A guest of Ringmain's hosts, or of OVS-DPDK's, is a vhost-user port.
//! The figure is the CPU time of both hosts for each frame that arrived: on a machine with few
//! CPUs, throughput says little, since the hosts and the generator share the CPUs.

mod frames;
mod guests;
mod kernel;
mod ovs;
mod point;
mod ringmain;
mod station_guests;
mod traffic;
mod underlay;

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use super::measure::{self, Backends, Measured, Plan};
use super::point::{Point, Unit};
use super::result::Comparison;
use super::tally::{Tally, Who};
use super::{BenchError, catch_signals, draw, find, keep_interrupted, publish, unix_time};
use crate::folders::folder;
use crate::program::Program;
use crate::progress::Progress;
use kernel::KernelHosts;
use ovs::OvsHosts;
use point::OverlayPoint;
use ringmain::RingmainHosts;
use traffic::Carried;
use underlay::{Transport, Wire};

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of runs of each point and each back-end; disturbed runs are repeated if possible
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Seconds measured in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub seconds: f64,

    /// Measure only these points [default: all]
    #[arg(long, value_name = "POINT,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(point::names()))]
    pub only: Vec<String>,

    /// Measure Ringmain only: neither a VXLAN device of the kernel's nor OVS-DPDK
    #[arg(long)]
    pub alone: bool,

    /// Leave out the points beside OVS-DPDK, which needs huge pages
    #[arg(long, conflicts_with = "alone")]
    pub no_ovs: bool,

    /// Measure nothing, and redraw the history of earlier runs
    #[arg(long)]
    pub history: bool,

    /// CPU of the workers of both of Ringmain's hosts, and of OVS-DPDK's polling thread
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub worker_cpu: usize,

    /// CPU of the generator
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub generator_cpu: usize,

    /// Limit of the CPU time of other processes, in percent of one CPU. A run above the limit
    /// counts as disturbed
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub disturbed_above: f64,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-overlay", value_parser = folder)]
    pub out: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

impl Args {
    /// The points to measure.
    fn points(&self) -> impl Iterator<Item = &'static OverlayPoint> {
        let left_out = self.no_ovs || self.alone;
        point::select(&self.only).filter(move |overlay| !(left_out && overlay.is_beside_ovs()))
    }
}

/// Compares. The table goes to standard output, results and history to `args.out`, progress to
/// standard error.
///
/// # Errors
/// When something is missing or does not start, or the user interrupts. Single runs that fail are
/// part of the result.
pub fn run(args: &Args) -> Result<(), BenchError> {
    if args.history {
        return draw(&args.out);
    }
    catch_signals()?;
    let progress = Progress::new();
    let began = unix_time();
    let mut tallies: Vec<Tally> = args.points().map(|overlay| Tally::new(overlay.point)).collect();
    let stage = progress.stage("starting hosts");
    let hosts = OverlayHosts::start(args)?;
    stage.done("");
    let cpus = [args.generator_cpu, args.worker_cpu];
    let plan = Plan { runs: args.runs, until_steady: false, cpus };
    let mut measured: Vec<&mut Tally> = tallies.iter_mut().collect();
    keep_interrupted(measure::measure_rounds(plan, &hosts, &mut measured, &progress), &tallies)?;
    publish(&args.out, &Comparison::new(began, args.runs, args.seconds, &tallies))
}

/// Both pairs of hosts on one kind of wire, and with one kind of underlay.
struct Site {
    wire: Wire,
    transport: Transport,
    ringmain: RingmainHosts,
    kernel: Option<KernelHosts>,
}

/// The hosts on all kinds of wires, and those of OVS-DPDK.
struct OverlayHosts<'a> {
    args: &'a Args,
    sites: Vec<Site>,
    ovs: Option<OvsHosts>,
}

impl<'a> OverlayHosts<'a> {
    fn start(args: &'a Args) -> Result<Self, BenchError> {
        let binary = find(&args.program)?;
        let site = |(wire, transport)| -> Result<Site, BenchError> {
            let ringmain = RingmainHosts::start(&binary, wire, transport, args.worker_cpu)?;
            let is_beside_kernel = |point: &OverlayPoint| {
                (point.wire, point.transport) == (wire, transport) && !point.is_beside_ovs()
            };
            let kernel = !args.alone && args.points().any(is_beside_kernel);
            let kernel = kernel.then(|| KernelHosts::start(wire)).transpose()?;
            Ok(Site { wire, transport, ringmain, kernel })
        };
        let wires = [Wire::Unsegmented, Wire::Segmented].into_iter();
        let kinds = wires.flat_map(|wire| {
            [Transport::Udp, Transport::Tap, Transport::Xdp].map(|kind| (wire, kind))
        });
        let is_used = |kind: &(Wire, Transport)| {
            args.points().any(|point| (point.wire, point.transport) == *kind)
        };
        let sites = kinds.filter(is_used).map(site).collect::<Result<_, _>>()?;
        let ovs = args.points().any(OverlayPoint::is_beside_ovs);
        let ovs = ovs.then(|| OvsHosts::start(args.worker_cpu, args.generator_cpu)).transpose()?;
        Ok(OverlayHosts { args, sites, ovs })
    }

    /// Carries the frames of a point. An error is one line.
    fn carry(&self, who: Who, overlay: &OverlayPoint) -> Result<Carried, String> {
        let wanted = (overlay.wire, overlay.transport);
        let site = self.sites.iter().find(|site| (site.wire, site.transport) == wanted);
        let site = site.ok_or("no hosts have this wire")?;
        let (seconds, cpu) = (self.args.seconds, self.args.generator_cpu);
        let ovs = self.ovs.as_ref().filter(|_| overlay.is_beside_ovs());
        match (who, ovs, &site.kernel) {
            (Who::Ringmain, ..) => site.ringmain.carry(overlay, seconds, cpu),
            (Who::Peer, Some(ovs), _) => ovs.carry(overlay, seconds, cpu),
            (Who::Peer, None, Some(kernel)) => kernel.carry(overlay, seconds, cpu),
            (Who::Peer | Who::Ceiling, ..) => Err("it is not part of this comparison".into()),
        }
    }
}

impl Backends for OverlayHosts<'_> {
    fn of(&self, _: &Point) -> Vec<Who> {
        if self.args.alone { vec![Who::Ringmain] } else { vec![Who::Peer, Who::Ringmain] }
    }

    fn measure(&self, who: Who, point: &Point) -> Result<Measured, String> {
        let overlay = point::find(point.name).ok_or("no such point")?;
        let carried = self.carry(who, overlay)?;
        let figure = |(unit, _): &(Unit, _)| match unit {
            Unit::HostNanos => carried.host_ns_per_frame(),
            Unit::Mpps => carried.frames / carried.seconds / 1e6,
            Unit::Gbps => carried.frames * overlay.traffic.bits() / carried.seconds / 1e9,
            _ => f64::NAN,
        };
        Ok(Measured {
            figures: point.figures.iter().map(figure).collect(),
            disturbed: carried.others * 100.0 > self.args.disturbed_above,
        })
    }
}
