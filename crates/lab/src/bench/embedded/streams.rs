//! TCP between two `ringmain guest`, by iperf, through the kernels of both.

use std::path::Path;
use std::time::Duration;

use super::case::Setting;
use super::figure::Figure;
use super::site::{self, Snapshot, failed};
use crate::bench::BenchError;
use crate::bench::iperf;
use crate::guest_process::{GuestProcess, GuestProcessSpec};

const TIMEOUT: Duration = Duration::from_secs(60);
const STREAMS: &str = "8";
const ADDRESSES: [&str; 2] = ["10.66.0.1", "10.66.0.2"];
const NAMES: [&str; 2] = ["a", "b"];

/// One run.
///
/// # Errors
/// When something does not start.
pub(super) fn measure(
    binary: &Path,
    setting: &Setting,
    time: Duration,
) -> Result<Figure, BenchError> {
    let daemon = site::daemon(setting, 1)?;
    let start = |n: usize, command: &[&str]| {
        let spec = GuestProcessSpec::new(binary, daemon.dir(), NAMES[n], ADDRESSES[n]);
        GuestProcess::start(&spec, command)
    };
    let mut receiver = start(1, &["iperf", "-s"])?;
    receiver.wait_for("Server listening", TIMEOUT)?;
    let then = Snapshot::now(&daemon, NAMES[1])?;
    let seconds = format!("{:.1}", time.as_secs_f64());
    let sender =
        start(0, &["iperf", "-c", ADDRESSES[1], "-P", STREAMS, "-t", &seconds, "-f", "k"])?;
    let said = sender.end(TIMEOUT + time)?;
    let (_, figure) = Snapshot::now(&daemon, NAMES[1])?.since(&then);
    let sum = iperf::sum(&said).ok_or_else(|| std::io::Error::other(said));
    let (_, bits_per_second) = sum.map_err(failed("measure with iperf"))?;
    Ok(Figure { rate: bits_per_second / 1e9, ..figure })
}
