//! TCP from the other end of a wire into a `ringmain guest`, by iperf. The wire is a veth, whose near end is in one bridge with
//! the switch's uplink.

use std::path::Path;
use std::time::Duration;

use super::case::Setting;
use super::figure::Figure;
use super::site::{self, Moment, failed};
use crate::bench::{BenchError, iperf};
use crate::daemon::Daemon;
use crate::guest::Namespace;
use crate::tenant::{Tenant, TenantSpec};

const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "b";
const ADDRESS: &str = "10.66.0.2";

/// The switch's uplink, as a port of the configuration.
const UPLINK: &str = "[[port]]\nname = \"up\"\nkind = \"tap\"\ndevice = \"rm-up\"\n";

/// One run.
///
/// # Errors
/// When something does not start.
pub(super) fn measure(binary: &Path, setting: &Setting, time: Duration) -> Result<Figure, BenchError> {
    let (host, far) = (Namespace::new()?, Namespace::new()?);
    lay(&host, &far)?;
    let config = |dir: &Path| format!("{}{UPLINK}", site::config(dir, setting, 1));
    let daemon = Daemon::start(binary, config, Some(&host))?;
    host.ip("link set rm-up master br0 up")?;
    let (socket, dir) = (&daemon.dir().join("guests.sock"), daemon.dir());
    // Where the port names no device, the guest asks in vain, and is served by the switch.
    let spec = TenantSpec {
        binary,
        socket,
        dir,
        name: NAME,
        address: ADDRESS,
        queues: 1,
        vcpus: 1,
        device_queue: true,
        single_channel: false,
    };
    let mut receiver = Tenant::start(&spec, &["iperf", "-s"])?;
    receiver.wait_for("Server listening", PATIENCE)?;
    let then = Moment::now(&daemon, NAME)?;
    let seconds = format!("{:.1}", time.as_secs_f64());
    let said = far.run("iperf", ["-c", ADDRESS, "-P", "8", "-t", &seconds, "-f", "k"])?;
    let (_, figure) = Moment::now(&daemon, NAME)?.since(&then);
    let sum = iperf::sum(&said).ok_or_else(|| std::io::Error::other(said));
    let (_, bits_per_second) = sum.map_err(failed("measure with iperf"))?;
    Ok(Figure { rate: bits_per_second / 1e9, ..figure })
}

/// Lays the wire, and plugs it into a bridge.
fn lay(host: &Namespace, far: &Namespace) -> Result<(), BenchError> {
    host.ip("link add br0 type bridge\nlink set br0 up\nlink add up0 type veth peer name far0")?;
    host.ip(&format!("link set far0 netns {}\nlink set up0 master br0 up", far.id()))?;
    // What crosses a wire is whole and checked, whoever receives it.
    far.run("ethtool", ["-K", "far0", "tx", "off"])?;
    Ok(far.ip("addr add 10.66.0.9/24 dev far0\nlink set far0 up")?)
}
