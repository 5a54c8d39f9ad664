//! The cost of frames to a port for its worker, as the daemon profiles it.

use std::time::Duration;

use super::super::inputs::Carried;
use crate::bench::BenchError;
use crate::daemon::{Daemon, DaemonError};
use control::categories::time;

/// Profiles a daemon for some time: the costs of a worker for frames to the second of these ports,
/// and interrupts to both. What the guests take is 0.
///
/// # Errors
/// When the daemon does not answer, or has no such port.
pub fn profiled(
    daemon: &Daemon,
    ports: &[String; 2],
    during: Duration,
) -> Result<Carried, BenchError> {
    let before = interrupts(daemon, ports)?;
    let profile = daemon.client().profile(during).map_err(DaemonError::from)?;
    let sent = interrupts(daemon, ports)? - before;
    let port =
        profile.ports.iter().find(|port| port.name == ports[1]).ok_or(DaemonError::Answer)?;
    let frames = port.frames.max(1) as f64;
    let step = |name| time(&port.steps_ns, name) as f64 / frames;
    Ok(Carried {
        bytes: port.bytes as f64 / frames,
        frames_per_burst: port.frames as f64 / port.bursts.max(1) as f64,
        frame: ["fetch", "classify", "deliver", "copy"].into_iter().map(step).sum(),
        publish: step("publish"),
        interrupts: sent as f64 / frames,
        sender: 0.0,
        receiver: 0.0,
        together: 0.0,
    })
}

/// Interrupts that the guests of these ports got so far.
fn interrupts(daemon: &Daemon, ports: &[String; 2]) -> Result<u64, BenchError> {
    let stats = daemon.stats()?;
    let own = stats.ports.iter().filter(|port| ports.contains(&port.name));
    Ok(own.map(|port| port.total.rx_interrupts + port.total.tx_interrupts).sum())
}
