//! What is not Linux and not ours at the other end: firmware that boots from the network, DPDK's
//! driver, and libvirt, which starts QEMU. These tests need root and `scripts/deps drivers`.

mod firmware;
mod libvirt;
mod testpmd;

use std::path::Path;
use std::time::Duration;

use control::api::Stats;
use lab::daemon::Daemon;
use lab::guest::{Deadline, Namespace};

/// For whatever must happen, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(300);

fn daemon(config: impl FnOnce(&Path) -> String, namespace: Option<&Namespace>) -> Daemon {
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, namespace).unwrap()
}

fn port(dir: &Path, name: &str, more: &str) -> String {
    let socket = dir.join(name);
    let socket = socket.display();
    format!("[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n{more}\n")
}

/// Waits for something that must come. `why` says more, if it does not.
fn wait(what: &str, mut there: impl FnMut() -> bool, why: impl FnOnce() -> String) {
    let mut deadline = Deadline::new(LIMIT);
    while !there() {
        if deadline.is_over() {
            panic!("{what}: in vain\n{}", why());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The counters of a port.
fn counts(stats: &Stats, name: &str) -> control::api::Counts {
    stats.ports.iter().find(|port| port.name == name).unwrap().total.clone()
}
