//! TCP from the other end of a cable into a `ringmain guest`, by iperf.

use std::path::Path;
use std::time::Duration;

use super::case::Setting;
use super::figure::Figure;
use super::site::{self, Snapshot, failed};
use crate::bench::{BenchError, iperf};
use crate::daemon::Daemon;
use crate::fixture::{Cable, UPLINK, whole_frames};
use crate::guest_process::{GuestProcess, GuestProcessSpec};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAME: &str = "b";
const ADDRESS: &str = "10.77.0.2";

/// One run.
///
/// # Errors
/// When something does not start.
pub(super) fn measure(
    binary: &Path,
    setting: &Setting,
    time: Duration,
) -> Result<Figure, BenchError> {
    let cable = Cable::lay()?;
    whole_frames(&cable.far)?;
    let config = |dir: &Path| format!("{}{UPLINK}", site::config(dir, setting, 1));
    let daemon = Daemon::with_design(setting.design, config, Some(&cable.host))?;
    cable.plug()?;
    // If the port names no device, the request is refused, and the switch serves the guest.
    let plain = GuestProcessSpec::new(binary, daemon.dir(), NAME, ADDRESS);
    let spec = GuestProcessSpec { device_queue: true, ..plain };
    let mut receiver = GuestProcess::start(&spec, &["iperf", "-s"])?;
    receiver.wait_for("Server listening", TIMEOUT)?;
    let then = Snapshot::now(&daemon, NAME)?;
    let seconds = format!("{:.1}", time.as_secs_f64());
    let said = cable.far.run("iperf", ["-c", ADDRESS, "-P", "8", "-t", &seconds, "-f", "k"])?;
    let (_, figure) = Snapshot::now(&daemon, NAME)?.since(&then);
    let sum = iperf::sum(&said).ok_or_else(|| std::io::Error::other(said));
    let (_, bits_per_second) = sum.map_err(failed("measure with iperf"))?;
    Ok(Figure { rate: bits_per_second / 1e9, ..figure })
}
