//! The command line.

use clap::{Parser, Subcommand};

/// Traffic, demonstrations, benchmarks and experiments for Ringmain
///
/// Starts its own daemons and guests, sends traffic between the guests, checks every frame, and
/// measures. Most commands need root. `ringmain-lab` looks for the program `ringmain` in its own
/// folder, and then in PATH.
#[derive(Debug, Parser)]
#[command(name = "ringmain-lab", version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate traffic through any vhost-user back-end, check every frame, and measure rate and
    /// latency
    Load(Box<load::Args>),
    /// Start two guests under QEMU, on Xen or as processes, send traffic between them with 1, 2 and
    /// 4 queues, and make a report
    Demo(lab::demo::Args),
    /// Start a guest under QEMU, on Xen or as a thread, read, write and verify disks with 1, 2 and
    /// 4 queues, and make a report
    DemoDisk(lab::disk_demo::Args),
    /// Compare Ringmain with OVS-DPDK: the same traffic through both, in turn
    Bench(lab::bench::Args),
    /// Measure each method of making long copies, between memories that are cached and that are not
    BenchCopy(lab::bench::copies::Args),
    /// Compare Ringmain's disks with those of qemu-storage-daemon: the same requests to both, in
    /// turn
    BenchDisk(lab::bench::disk::Args),
    /// Measure embedded ports with each option on and off, in turn
    BenchEmbedded(lab::bench::embedded::Args),
    /// Compare Ringmain with the kernel's xen-netback by instruction counts: the same guests with
    /// both, in turn, on a real Xen host
    BenchXen(lab::bench::xen::Args),
    /// Compare Ringmain's disks with the kernel's xen-blkback by instruction counts: the same guest
    /// with both, in turn, on a real Xen host
    BenchXenDisk(lab::bench::xen::disk::Args),
    /// Measure rate and latency of two guests beside a hostile neighbour and beside a fair
    /// neighbour, in turn, for each attack
    BenchIsolation(lab::bench::isolation::Args),
    /// Compare Ringmain's overlay with the kernel's VXLAN device and bridge: the same frames
    /// between guests of two hosts, in turn
    BenchOverlay(lab::bench::overlay::Args),
    /// Compare the daemon without and with a thread that sends interrupts for its worker, in turn
    BenchInterruptThread(lab::bench::interrupt_thread::Args),
    /// Measure what an interrupt of a sleeping guest costs a worker, and what the worker saves if
    /// another thread interrupts the guest
    BenchSignal(lab::bench::signals::Args),
    /// Measure how long a stock guest is unreachable while it migrates between two daemons
    BenchMigration(lab::bench::migration::Args),
    /// Published experiments.
    #[command(flatten)]
    Experiments(lab::suite::Command),
    /// Predict throughput for more workers, queues and guests from costs measured on this machine
    Model(lab::model::Args),
    /// Run a daemon whose embedded hypervisor has one of Xen's older internal designs
    Serve(lab::serve::Args),
    /// Serve the two sockets of the bare copy that benchmarks compare with
    #[command(hide = true)]
    BareCopy(lab::bench::ceiling::Args),
    /// Serve the socket of the bare disk that benchmarks compare with
    #[command(hide = true)]
    BareDisk(lab::bench::bare_disk::Args),
    /// Serve the two sockets of the bare wire that the demonstration compares with
    #[command(hide = true)]
    BareWire(lab::demo::bare_wire::Args),
    /// Copy pages of this domain by grants, and nothing else, in dom0 of a Xen host
    #[command(hide = true)]
    GrantCopies(lab::bench::xen::grant_copies::Args),
    /// Print the manual page, as roff
    #[command(hide = true)]
    Man,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_as_pages_print_it() {
        pages::check_command_line::<Cli>("ringmain-lab");
    }
}
