//! The fabrics that carry the frames: the daemon, and those that it is compared with.

use super::site::{Counts, QueueCount, queues};
use super::{Args, DemoError, MOST_QUEUES, Over, TIMEOUT, bare_wire};
use crate::bare_process::BareProcess;
use crate::daemon::Daemon;
use crate::guest::{Guest, Link, Namespace, Shell};
use crate::ovs::Ovs;
use control::api::Stats;
use load::cpu::{GENERATOR_CPU, WORKER_CPU};
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// A fabric that two guests can be attached to.
pub(super) enum Fabric {
    Ringmain(Daemon),
    Bridge(Namespace),
    Ovs(Box<Ovs>),
    BareWire(BareProcess),
}

impl Fabric {
    pub(super) fn start(over: Over, args: &Args) -> Result<Fabric, DemoError> {
        match over {
            Over::Ringmain => {
                let config = |dir: &Path| config(dir, args.workers);
                Ok(Fabric::Ringmain(Daemon::start(&super::find(&args.program)?, config, None)?))
            }
            Over::Bridge => {
                let namespace = Namespace::new()?;
                namespace.ip("link add br0 type bridge\nlink set br0 up")?;
                for index in 0..2 {
                    namespace.ip(&format!(
                        "tuntap add dev tap{index} mode tap multi_queue vnet_hdr\nlink set tap{index} master br0 up"
                    ))?;
                }
                Ok(Fabric::Bridge(namespace))
            }
            Over::OvsDpdk => {
                Ok(Fabric::Ovs(Box::new(Ovs::start((2, None), WORKER_CPU, GENERATOR_CPU)?)))
            }
            Over::BareWire => Ok(Fabric::BareWire(start_bare_wire().map_err(|source| {
                DemoError::File { what: "cannot start the bare wire".into(), source }
            })?)),
        }
    }

    /// Which of them this is.
    pub(super) fn over(&self) -> Over {
        match self {
            Fabric::Ringmain(_) => Over::Ringmain,
            Fabric::Bridge(_) => Over::Bridge,
            Fabric::Ovs(_) => Over::OvsDpdk,
            Fabric::BareWire(_) => Over::BareWire,
        }
    }

    /// The attachment of guest `index`.
    pub(super) fn link(&self, index: usize) -> Link {
        match self {
            Fabric::Ringmain(daemon) => Link::VhostUser {
                socket: daemon.dir().join(format!("{index}.sock")),
                listens: false,
            },
            Fabric::Bridge(_) => Link::Tap { device: format!("tap{index}") },
            Fabric::Ovs(ovs) => {
                Link::VhostUser { socket: ovs.sockets()[index].clone(), listens: true }
            }
            Fabric::BareWire(wire) => {
                let socket = bare_wire::sockets(wire.dir())[index].clone();
                Link::VhostUser { socket, listens: false }
            }
        }
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Fabric::Ringmain(_) | Fabric::Ovs(_) | Fabric::BareWire(_) => None,
            Fabric::Bridge(namespace) => Some(namespace),
        }
    }

    /// The process that carries; the bridge has none.
    pub(super) fn daemon(&self) -> Option<u32> {
        match self {
            Fabric::Ringmain(daemon) => Some(daemon.id()),
            Fabric::Ovs(ovs) => Some(ovs.id()),
            Fabric::BareWire(wire) => Some(wire.id()),
            Fabric::Bridge(_) => None,
        }
    }

    /// All that the daemon counted.
    pub(super) fn stats(&self) -> Result<Option<Stats>, DemoError> {
        match self {
            Fabric::Ringmain(daemon) => Ok(Some(daemon.stats()?)),
            Fabric::Bridge(_) | Fabric::Ovs(_) | Fabric::BareWire(_) => Ok(None),
        }
    }

    /// The counts so far: by the daemon, or by the guests' drivers.
    pub(super) fn counts(&self, guests: &[Guest; 2]) -> Result<Counts, DemoError> {
        match self {
            Fabric::Ringmain(daemon) => {
                let stats = daemon.stats()?;
                let of = |index: usize| queues(stats.ports.get(index));
                Ok(Counts { sender: of(0), receiver: of(1) })
            }
            Fabric::Bridge(_) | Fabric::Ovs(_) | Fabric::BareWire(_) => {
                let of = |guest: &Guest| {
                    Ok::<_, DemoError>(driver_counts(&guest.must("ethtool -S eth0", TIMEOUT)?))
                };
                let [sender, receiver] = guests;
                Ok(Counts { sender: of(sender)?, receiver: of(receiver)? })
            }
        }
    }
}

/// Starts the process of the bare wire.
fn start_bare_wire() -> io::Result<BareProcess> {
    let dir = BareProcess::folder()?;
    let (folder, sockets) = (dir.path().to_owned(), bare_wire::sockets(dir.path()));
    let arguments = [OsStr::new("bare-wire"), folder.as_os_str()];
    BareProcess::start(dir, arguments, &sockets)
}

fn config(dir: &Path, workers: Option<u16>) -> String {
    let port = |index: usize| {
        format!(
            "[[port]]\nname = \"guest-{index}\"\nkind = \"vhost-user\"\nsocket = \"{}/{index}.sock\"\nqueues = {MOST_QUEUES}\n",
            dir.display()
        )
    };
    format!("{}{}{}", super::workers(workers), port(0), port(1))
}

/// Reads what virtio_net prints for `ethtool -S`: "rx_queue_0_bytes: 12". The driver of Linux 6.12
/// prints no bytes there, so all counts stay zero.
fn driver_counts(text: &str) -> Vec<QueueCount> {
    let mut queues = vec![QueueCount::default(); usize::from(MOST_QUEUES)];
    for line in text.lines() {
        let Some((name, count)) = line.trim().split_once(": ") else { continue };
        let &[direction, "queue", index, what] = &name.splitn(4, '_').collect::<Vec<_>>()[..]
        else {
            continue;
        };
        let Some(queue) = index.parse::<usize>().ok().and_then(|index| queues.get_mut(index))
        else {
            continue;
        };
        let count = count.trim().parse().unwrap_or_default();
        match (direction, what) {
            ("rx", "bytes") => queue.rx_bytes = count,
            ("rx", "packets") => queue.rx_frames = count,
            ("tx", "bytes") => queue.tx_bytes = count,
            _ => {}
        }
    }
    queues
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_counters_are_read_by_queue() {
        let text = "NIC statistics:\n     rx_queue_0_packets: 7\n     rx_queue_0_bytes: 900\n     rx_queue_3_bytes: 5\n     \
            tx_queue_1_bytes: 3\n     tx_queue_9_bytes: 4\n     tx_queue_1_xdp_tx: 8\n";
        let queues = driver_counts(text);
        let counts: Vec<_> =
            queues.iter().map(|queue| (queue.rx_frames, queue.rx_bytes, queue.tx_bytes)).collect();
        assert_eq!(counts, [(7, 900, 0), (0, 0, 3), (0, 0, 0), (0, 5, 0)]);
    }
}
