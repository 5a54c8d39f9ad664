//! The daemon's sandbox, which is entered before any thread starts and reported in the log.

use std::path::Path;

use control::config::Config;
use control::confinement::{Confinement, plan};
use control::disks::OpenImages;
use sandbox::{Entered, LayerReport, LayerState};
use tracing::{info, warn};

/// Enters the sandbox that fits a configuration, which was read from `file`.
pub fn enter(config: &Config, file: &Path) -> Confinement {
    let started_by = rustix::process::geteuid().as_raw();
    let plan = plan(config, file);
    // Within the sandbox, the images may belong to another user, or have no path.
    let images = OpenImages::of(config);
    let Entered { layers, missing } = plan.enter();
    layers.iter().for_each(log);
    for folder in missing {
        warn!(reason = %folder, "a folder for sockets is missing; create it and restart the daemon");
    }
    Confinement::new(started_by, &plan, layers, images)
}

/// Logs the protection that is missing without a sandbox.
pub fn go_without() -> Confinement {
    warn!(
        "NO SANDBOX: an attacker in this process reaches all files, devices, processes and \
         networks of its user, with all capabilities; the sandbox is on unless --no-sandbox or \
         sandbox.enabled = false turns it off"
    );
    Confinement::default()
}

fn log(LayerReport { layer, state }: &LayerReport) {
    let layer = layer.name();
    match state {
        LayerState::Active(detail) => info!(layer, detail, "sandbox layer entered"),
        LayerState::Partial(reason) => warn!(layer, reason, "sandbox layer entered in part"),
        LayerState::Missing(reason) => warn!(layer, reason, "sandbox layer missing"),
    }
}
