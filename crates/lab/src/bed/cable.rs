//! A cable from another machine into a host: a veth, whose near end is in one bridge with the
//! switch's uplink.

use std::time::Duration;

use super::station::Station;
use crate::guest::{GuestError, Namespace};

/// The host's interface that the cable ends at.
pub const DEVICE: &str = "up0";
/// The switch's uplink, as a port of the configuration.
pub const UPLINK: &str = "[[port]]\nname = \"up\"\nkind = \"tap\"\ndevice = \"rm-up\"\n";
/// The other machine's address.
const ADDRESS: &str = "10.77.0.254/24";

/// A host, and another machine at the far end of a cable. All of it goes when this does.
#[derive(Debug)]
pub struct Cable {
    /// Where the daemon is to run, with [`UPLINK`] among its ports.
    pub host: Namespace,
    /// The other machine. Its interface is `eth0`.
    pub far: Namespace,
}

impl Cable {
    /// Lays the cable, and plugs it into a bridge of the host.
    ///
    /// # Errors
    /// When namespaces or interfaces cannot be made.
    pub fn lay() -> Result<Cable, GuestError> {
        let (host, far) = (Namespace::new()?, Namespace::new()?);
        host.ip(&format!(
            "link add br0 type bridge\nlink set br0 up\nlink add {DEVICE} type veth peer name far0"
        ))?;
        host.ip(&format!(
            "link set far0 netns {} name eth0\nlink set {DEVICE} master br0 up",
            far.id()
        ))?;
        far.ip(&format!("addr add {ADDRESS} dev eth0\nlink set eth0 up"))?;
        Ok(Cable { host, far })
    }

    /// Plugs the switch's uplink into the same bridge: once the daemon runs.
    ///
    /// # Errors
    /// When there is no such uplink.
    pub fn plug(&self) -> Result<(), GuestError> {
        self.host.ip("link set rm-up master br0 up")
    }
}

/// Has a machine's kernel send frames as a cable carries them: whole, checked, and no longer than
/// the MTU.
///
/// # Errors
/// When `ethtool` fails.
pub fn whole_frames(at: &dyn Station) -> Result<(), GuestError> {
    at.launch("ethtool -K eth0 tx off tso off gso on")?.wait(Duration::from_secs(30)).map(drop)
}
