//! How the two ends of a vif come to terms: keys in the store, and the state of each end (netif.h;
//! xenbus.h).
//!
//! Everything that the frontend wrote is read once, checked as a whole, and then kept: what it
//! writes later counts only for the next connection, or against it.

use hypervisor::{GrantRef, Nodes, RemotePort, StoreError};
use thiserror::Error;

use crate::netif::direct;
use crate::netif::extensions::Extensions;

/// What we offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Queues that a frontend may have.
    pub queues: u16,
    /// What it may do beyond netif.h.
    pub extensions: Extensions,
}

impl Offer {
    /// Writes the offer into the backend's directory `path`.
    ///
    /// # Errors
    /// What the store says.
    pub fn write(&self, nodes: &dyn Nodes, path: &str) -> Result<(), StoreError> {
        const OFFERED: [(&str, u8); 10] = [
            ("feature-rx-copy", 1),
            ("feature-rx-flip", 0),
            ("feature-sg", 1),
            ("feature-gso-tcpv4", 1),
            ("feature-gso-tcpv6", 1),
            ("feature-ipv6-csum-offload", 1),
            ("feature-multicast-control", 1),
            ("feature-dynamic-multicast-control", 1),
            ("feature-split-event-channels", 1),
            ("feature-ctrl-ring", 1),
        ];
        for (key, value) in OFFERED {
            nodes.put(&format!("{path}/{key}"), value)?;
        }
        self.extensions.offer(nodes, path)?;
        nodes.put(&format!("{path}/multi-queue-max-queues"), self.queues)
    }
}

/// Why a frontend's keys were not accepted.
#[derive(Debug, Error)]
pub enum Refusal {
    /// A key is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A key is there that makes no sense, or the store can't be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It does not receive by copy, and there is no other way.
    #[error("request-rx-copy is not 1: frames are received by copy only")]
    RxCopy,
    /// It wants no queue, or more than were offered.
    #[error("multi-queue-num-queues is {asked}, 1 to {offered} are possible")]
    Queues {
        /// What it wants.
        asked: u32,
        /// What was offered.
        offered: u16,
    },
    /// Two rings in one page.
    #[error("two rings in the page with grant reference {0}")]
    SameRing(GrantRef),
    /// Two uses of one event channel.
    #[error("event channel {} is named twice", .0.0)]
    SamePort(RemotePort),
}

/// Where one queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKeys {
    /// The page of its Tx ring.
    pub tx_ring: GrantRef,
    /// The page of its Rx ring.
    pub rx_ring: GrantRef,
    /// Its event channel, or that of its Tx ring.
    pub tx_port: RemotePort,
    /// The event channel of its Rx ring, if it has one of its own.
    pub rx_port: Option<RemotePort>,
}

/// What a frontend takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Frames in several slots.
    pub sg: bool,
    /// TCP over IPv4, to be segmented.
    pub gso_v4: bool,
    /// TCP over IPv6, to be segmented.
    pub gso_v6: bool,
    /// Blank checksums over IPv4.
    pub csum_v4: bool,
    /// Blank checksums over IPv6.
    pub csum_v6: bool,
    /// It tells when it has posted buffers.
    pub rx_notify: bool,
    /// What it does beyond netif.h.
    pub extensions: Extensions,
}

impl Takes {
    /// The names of what it takes, as in the store.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            (self.sg, "sg"),
            (self.gso_v4, "gso-tcpv4"),
            (self.gso_v6, "gso-tcpv6"),
            (self.csum_v4, "csum"),
            (self.csum_v6, "ipv6-csum"),
            (self.rx_notify, "rx-notify"),
        ];
        all.into_iter()
            .filter(|(takes, _)| *takes)
            .map(|(_, name)| name)
            .chain(self.extensions.names())
            .collect()
    }
}

/// What a frontend has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its queues, at least one.
    pub queues: Vec<QueueKeys>,
    /// What it takes.
    pub takes: Takes,
    /// Its control ring: the page, and the event channel.
    pub control: Option<(GrantRef, RemotePort)>,
    /// A ring for a device to fill.
    pub direct: Option<direct::Keys>,
}

impl Request {
    /// Reads what the frontend with directory `path` asks for.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(nodes: &dyn Nodes, path: &str, offer: Offer) -> Result<Request, Refusal> {
        let keys = Keys { nodes, path };
        if !keys.flag("request-rx-copy")? {
            return Err(Refusal::RxCopy);
        }
        let asked: u32 = keys.number("multi-queue-num-queues")?.unwrap_or(1);
        if asked == 0 || asked > u32::from(offer.queues) {
            return Err(Refusal::Queues { asked, offered: offer.queues });
        }
        // A single queue's keys are those of a frontend that knows of no queues.
        let queue =
            |n: u32| if asked == 1 { keys.queue("") } else { keys.queue(&format!("queue-{n}/")) };
        let takes = Takes {
            sg: keys.flag("feature-sg")?,
            gso_v4: keys.flag("feature-gso-tcpv4")?,
            gso_v6: keys.flag("feature-gso-tcpv6")?,
            csum_v4: !keys.flag("feature-no-csum-offload")?,
            csum_v6: keys.flag("feature-ipv6-csum-offload")?,
            rx_notify: keys.flag("feature-rx-notify")?,
            extensions: offer.extensions.and(Extensions::asked(nodes, path)?),
        };
        let control = match keys.number("ctrl-ring-ref")? {
            Some(ring) => Some((GrantRef(ring), RemotePort(keys.need("event-channel-ctrl")?))),
            None => None,
        };
        let queues = (0..asked).map(queue).collect::<Result<_, _>>()?;
        let request = Request { queues, takes, control, direct: direct::Keys::read(nodes, path)? };
        request.check()?;
        Ok(request)
    }

    /// No page and no channel may serve twice.
    fn check(&self) -> Result<(), Refusal> {
        let (ring, port) = self.control.unzip();
        let mut rings: Vec<GrantRef> =
            self.queues.iter().flat_map(|queue| [queue.tx_ring, queue.rx_ring]).collect();
        rings.extend(ring);
        rings.extend(self.direct.iter().flat_map(|keys| [keys.ring, keys.list]));
        let mut ports: Vec<RemotePort> = self.queues.iter().map(|queue| queue.tx_port).collect();
        ports.extend(self.queues.iter().filter_map(|queue| queue.rx_port));
        ports.extend(port);
        ports.extend(self.direct.map(|keys| keys.port));
        match (twice(&mut rings), twice(&mut ports)) {
            (Some(ring), _) => Err(Refusal::SameRing(ring)),
            (_, Some(port)) => Err(Refusal::SamePort(port)),
            (None, None) => Ok(()),
        }
    }
}

/// The first one that is there twice.
fn twice<T: Ord + Copy>(all: &mut [T]) -> Option<T> {
    all.sort_unstable();
    all.windows(2).find_map(|pair| match pair {
        [a, b] if a == b => Some(*a),
        _ => None,
    })
}

/// Whether the frontend with directory `path` wants only the groups that it names. This may change
/// at any time.
///
/// # Errors
/// When the store can't be asked.
pub fn wants_groups(nodes: &dyn Nodes, path: &str) -> Result<bool, StoreError> {
    match (Keys { nodes, path }).flag("request-multicast-control") {
        Err(StoreError::Value { .. }) => Ok(false),
        wants => wants,
    }
}

/// The keys of one directory.
struct Keys<'a> {
    nodes: &'a dyn Nodes,
    path: &'a str,
}

impl Keys<'_> {
    fn number(&self, key: &str) -> Result<Option<u32>, StoreError> {
        self.nodes.number(&format!("{}/{key}", self.path))
    }

    fn need(&self, key: &str) -> Result<u32, Refusal> {
        self.number(key)?.ok_or_else(|| Refusal::Missing(format!("{}/{key}", self.path)))
    }

    fn flag(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.number(key)?.is_some_and(|value| value != 0))
    }

    fn queue(&self, prefix: &str) -> Result<QueueKeys, Refusal> {
        let key = |name: &str| format!("{prefix}{name}");
        let (tx_port, rx_port) = match self.number(&key("event-channel-tx"))? {
            Some(tx) => (tx, Some(RemotePort(self.need(&key("event-channel-rx"))?))),
            None => (self.need(&key("event-channel"))?, None),
        };
        Ok(QueueKeys {
            tx_ring: GrantRef(self.need(&key("tx-ring-ref"))?),
            rx_ring: GrantRef(self.need(&key("rx-ring-ref"))?),
            tx_port: RemotePort(tx_port),
            rx_port,
        })
    }
}

#[cfg(test)]
mod tests;
