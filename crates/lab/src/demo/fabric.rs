//! What carries the frames: the daemon, or a Linux bridge to compare with.

use super::{DemoError, MOST_QUEUES, Over, PATIENCE};
use crate::daemon::Daemon;
use crate::guest::{Guest, Link, Namespace, Shell};

/// A fabric that two guests can be attached to.
pub(super) enum Fabric {
    Ringmain(Daemon),
    Bridge(Namespace),
}

/// Counters of one queue pair; directions are the guest's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueCount {
    pub(super) tx_bytes: u64,
    pub(super) rx_bytes: u64,
    pub(super) rx_frames: u64,
    pub(super) rx_interrupts: u64,
}

/// Counters of both guests' queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) sender: Vec<QueueCount>,
    pub(super) receiver: Vec<QueueCount>,
}

impl Counts {
    pub(super) fn all(&self) -> impl Iterator<Item = &QueueCount> {
        self.sender.iter().chain(&self.receiver)
    }

    /// What was counted since an earlier look.
    pub(super) fn since(&self, earlier: &Counts) -> Counts {
        let less = |now: &[QueueCount], then: &[QueueCount]| {
            let pairs = now.iter().zip(then);
            let since = pairs.map(|(now, then)| QueueCount {
                tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
                rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
                rx_frames: now.rx_frames.saturating_sub(then.rx_frames),
                rx_interrupts: now.rx_interrupts.saturating_sub(then.rx_interrupts),
            });
            since.collect()
        };
        Counts { sender: less(&self.sender, &earlier.sender), receiver: less(&self.receiver, &earlier.receiver) }
    }
}

impl Fabric {
    pub(super) fn start(over: Over) -> Result<Fabric, DemoError> {
        match over {
            Over::Ringmain => {
                let binary = std::env::current_exe()
                    .map_err(|source| DemoError::File { what: "cannot find this command".into(), source })?;
                Ok(Fabric::Ringmain(Daemon::start(&binary, config, None)?))
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
        }
    }

    /// Where guest `index` is attached.
    pub(super) fn link(&self, index: usize) -> Link {
        match self {
            Fabric::Ringmain(daemon) => {
                Link::VhostUser { socket: daemon.dir().join(format!("{index}.sock")), listens: false }
            }
            Fabric::Bridge(_) => Link::Tap { device: format!("tap{index}") },
        }
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Fabric::Ringmain(_) => None,
            Fabric::Bridge(namespace) => Some(namespace),
        }
    }

    /// The daemon's process id; the bridge has none.
    pub(super) fn daemon(&self) -> Option<u32> {
        match self {
            Fabric::Ringmain(daemon) => Some(daemon.id()),
            Fabric::Bridge(_) => None,
        }
    }

    /// What was counted so far: by the daemon, or by the guests' drivers.
    pub(super) fn counts(&self, sender: &Guest, receiver: &Guest) -> Result<Counts, DemoError> {
        match self {
            Fabric::Ringmain(daemon) => {
                let stats = daemon.stats()?;
                let of = |index: usize| {
                    let mut queues = vec![QueueCount::default(); usize::from(MOST_QUEUES)];
                    for queue in stats.ports.get(index).into_iter().flat_map(|port| &port.queues) {
                        if let Some(place) = queues.get_mut(usize::from(queue.index)) {
                            *place = QueueCount {
                                tx_bytes: queue.counts.tx_bytes,
                                rx_bytes: queue.counts.rx_bytes,
                                rx_frames: queue.counts.rx_frames,
                                rx_interrupts: queue.counts.rx_interrupts,
                            };
                        }
                    }
                    queues
                };
                Ok(Counts { sender: of(0), receiver: of(1) })
            }
            Fabric::Bridge(_) => {
                let of = |guest: &Guest| Ok::<_, DemoError>(driver_counts(&guest.must("ethtool -S eth0", PATIENCE)?));
                Ok(Counts { sender: of(sender)?, receiver: of(receiver)? })
            }
        }
    }
}

fn config(dir: &std::path::Path) -> String {
    let port = |index: usize| {
        format!(
            "[[port]]\nname = \"guest-{index}\"\nkind = \"vhost-user\"\nsocket = \"{}/{index}.sock\"\nqueues = {MOST_QUEUES}\n",
            dir.display()
        )
    };
    format!("{}{}", port(0), port(1))
}

/// Reads what virtio_net prints for `ethtool -S`: "rx_queue_0_bytes: 12".
fn driver_counts(text: &str) -> Vec<QueueCount> {
    let mut queues = vec![QueueCount::default(); usize::from(MOST_QUEUES)];
    for line in text.lines() {
        let Some((name, count)) = line.trim().split_once(": ") else { continue };
        let &[direction, "queue", index, what] = &name.splitn(4, '_').collect::<Vec<_>>()[..] else { continue };
        let Some(queue) = index.parse::<usize>().ok().and_then(|index| queues.get_mut(index)) else { continue };
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
        let counts: Vec<_> = queues.iter().map(|queue| (queue.rx_frames, queue.rx_bytes, queue.tx_bytes)).collect();
        assert_eq!(counts, [(7, 900, 0), (0, 0, 3), (0, 0, 0), (0, 5, 0)]);
    }
}
