//! A TAP in a network of its own, whose frames come from the generator.

use std::fs;
use std::io;
use std::sync::Arc;

use hostlink::tap::{Tap, TapConfig};
use network::fabric::Fabric;
use network::restrictions::Restrictions;
use nix::sched::{CloneFlags, unshare};
use switch::PortRule;

use crate::error::InstructionsError as Error;

/// The name of the device.
pub const NAME: &str = "rm-tap";

/// Where the kernel is told to send nothing of its own by new devices: frames that come when they
/// like would be counted.
const SILENCE: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";

/// Moves this thread to a new network that has no devices. Needs root.
///
/// # Errors
/// When the kernel refuses.
pub fn enter_network() -> Result<(), Error> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|errno| Error::system("make a network namespace: run as root", errno.into()))?;
    match fs::write(SILENCE, "1") {
        // A kernel without IPv6 is silent.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::system("switch IPv6 off", error))
        }
        _ => Ok(()),
    }
}

/// Makes the device in this thread's network, and a port of one queue for it.
///
/// # Errors
/// When the kernel or the fabric refuse.
pub fn start(fabric: &Arc<Fabric>) -> Result<Tap, Error> {
    let config = TapConfig {
        device: NAME.into(),
        queues: 1,
        rule: PortRule::default(),
        mtu: None,
        policy: None,
        restrictions: Restrictions::default(),
    };
    Ok(Tap::start(Arc::clone(fabric), config)?)
}
