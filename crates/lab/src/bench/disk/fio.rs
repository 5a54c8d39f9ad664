//! fio on the host, on the same file as the back-ends: no guest, no rings.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::point::DiskPoint;
use crate::disk_demo::fio::figures;
use crate::disk_load::{Operation, Order};
use crate::guest::ChildProcess;

/// Runs fio on one CPU for so long. Its megabytes per second.
///
/// # Errors
/// An error is one line.
pub(super) fn run(
    cpu: usize,
    image: &Path,
    disk: &DiskPoint,
    time: Duration,
) -> Result<Vec<f64>, String> {
    let mut command = command(cpu, image, disk, time);
    let output = command.output().map_err(|error| format!("cannot start fio: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let figures = figures(&said, disk.workload.operation).map_err(|error| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        format!("{error} {}", complaint.trim()).replace('\n', "; ")
    })?;
    Ok(vec![figures.megabytes])
}

fn command(cpu: usize, image: &Path, disk: &DiskPoint, time: Duration) -> Command {
    let workload = &disk.workload;
    let rw = match (workload.order, workload.operation) {
        (Order::Random, Operation::Read) => "randread",
        (Order::Random, Operation::Write) => "randwrite",
        (Order::Serial, Operation::Read) => "read",
        (Order::Serial, Operation::Write) => "write",
    };
    let mut command = ChildProcess::command("taskset");
    command.args(["-c", &cpu.to_string(), "fio", "--name=requests", "--thread", "--direct=1"]);
    command.args(["--ioengine=io_uring", "--time_based", "--output-format=json"]);
    command.arg(format!("--filename={}", image.display()));
    command.arg(format!("--rw={rw}"));
    command.arg(format!("--bs={}", workload.bytes));
    command.arg(format!("--iodepth={}", workload.depth));
    command.arg("--ramp_time=300ms").arg(format!("--runtime={}ms", time.as_millis()));
    command.stdin(Stdio::null());
    command
}
