//! The command line.

use clap::{Parser, Subcommand};

/// Traffic, demonstrations, benchmarks and experiments for Ringmain
///
/// Starts daemons and guests of its own, sends between them, checks every frame, and measures. Most
/// commands need root. `ringmain-lab` finds the program `ringmain` beside itself.
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
    /// Generate traffic against any vhost-user back-end, check every frame, and measure
    Load(Box<load::Args>),
    /// Start two guests under QEMU, on Xen or as processes, send between them with 1, 2 and 4
    /// queues, and make a report
    Demo(lab::demo::Args),
    /// Start a guest with disks of 1, 2 and 4 queues, under QEMU or as a thread, read, write and
    /// verify, and make a report
    DemoDisk(lab::disk_demo::Args),
    /// Compare Ringmain with OVS-DPDK: the same traffic through both, in turn
    Bench(lab::bench::Args),
    /// Compare Ringmain's disks with those of qemu-storage-daemon: the same requests to both, in turn
    BenchDisk(lab::bench::disk::Args),
    /// Compare each option of embedded ports, on and off in turn
    BenchEmbedded(lab::bench::embedded::Args),
    /// Compare Ringmain with the kernel's xen-netback, by instructions, with the same guests on a
    /// real Xen host in turn
    BenchXen(lab::bench::xen::Args),
    /// Compare Ringmain's disks with the kernel's xen-blkback, by instructions, with the same guest
    /// on a real Xen host in turn
    BenchXenDisk(lab::bench::xen::disk::Args),
    /// Measure rate and latency of two guests beside a hostile neighbour, attack by attack, in turn
    /// with a fair neighbour
    BenchIsolation(lab::bench::isolation::Args),
    /// Measure how long a stock guest that migrates between two daemons is out of reach
    BenchMigration(lab::bench::migration::Args),
    /// Published experiments.
    #[command(flatten)]
    Experiments(lab::suite::Command),
    /// Predict throughput for more workers, queues and guests from costs measured here
    Model(lab::model::Args),
    /// Run a daemon whose embedded hypervisor has one of Xen's older inner designs
    Serve(lab::serve::Args),
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
