//! Negotiation between the two ends of a vif, by keys in the store (netif.h, "Feature
//! negotiation").
//!
//! All keys of the frontend are read once and checked as a whole. Keys that it writes later count
//! only for its next connection; a change while it is connected ends the connection.

use hypervisor::{GrantRef, Nodes, RemotePort, StoreError};
use thiserror::Error;

use crate::netif::device_queue::DeviceQueueKeys;
use crate::netif::extensions::Extensions;
use crate::xenbus::keys::{KeyError, Keys, check_distinct};

/// The features that the backend offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendFeatures {
    /// Queues that a frontend may have.
    pub queues: u16,
    /// Extensions of netif.h that it may use.
    pub extensions: Extensions,
}

impl BackendFeatures {
    /// Writes the offer into the backend's directory `path`.
    ///
    /// # Errors
    /// When the store fails.
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

/// The reason why the keys of a frontend are not accepted.
#[derive(Debug, Error)]
pub enum NegotiationError {
    /// A key is missing or not valid, whatever the class of the device.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The frontend does not receive by copy. (Page flipping is obsolete.)
    #[error("request-rx-copy is not 1: frames are received by copy only")]
    RxCopy,
}

impl From<StoreError> for NegotiationError {
    fn from(error: StoreError) -> Self {
        NegotiationError::Keys(error.into())
    }
}

/// The keys of one queue.
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

/// The features that a frontend supports. `feature-no-csum-offload` is inverted: without it,
/// `csum_v4` is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontendFeatures {
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
    /// The frontend signals when it has posted buffers (`feature-rx-notify`).
    pub rx_notify: bool,
    /// Extensions of netif.h that it uses.
    pub extensions: Extensions,
}

impl FrontendFeatures {
    /// The names of the features that are on, as in the store.
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
            .filter(|(on, _)| *on)
            .map(|(_, name)| name)
            .chain(self.extensions.names())
            .collect()
    }
}

/// All keys of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendKeys {
    /// Its queues, at least one.
    pub queues: Vec<QueueKeys>,
    /// The features that the frontend supports.
    pub features: FrontendFeatures,
    /// Its control ring: the page, and the event channel.
    pub control: Option<(GrantRef, RemotePort)>,
    /// Its device queue, if it requests one.
    pub device_queue: Option<DeviceQueueKeys>,
}

impl FrontendKeys {
    /// Reads and checks the keys of the frontend with directory `path`.
    ///
    /// # Errors
    /// The first key that is not accepted.
    pub fn read(
        nodes: &dyn Nodes,
        path: &str,
        offer: BackendFeatures,
    ) -> Result<FrontendKeys, NegotiationError> {
        let keys = Keys::new(nodes, path);
        if !keys.flag("request-rx-copy")? {
            return Err(NegotiationError::RxCopy);
        }
        let asked = keys.queues(offer.queues)?;
        // The keys of a single queue have no prefix: netif.h forbids `queue-0/` for it.
        let nth_queue =
            |n: u16| if asked == 1 { queue(keys, "") } else { queue(keys, &format!("queue-{n}/")) };
        let features = FrontendFeatures {
            sg: keys.flag("feature-sg")?,
            gso_v4: keys.flag("feature-gso-tcpv4")?,
            gso_v6: keys.flag("feature-gso-tcpv6")?,
            csum_v4: !keys.flag("feature-no-csum-offload")?,
            csum_v6: keys.flag("feature-ipv6-csum-offload")?,
            rx_notify: keys.flag("feature-rx-notify")?,
            extensions: offer.extensions.and(Extensions::asked(nodes, path)?),
        };
        let control = match keys.number("ctrl-ring-ref")? {
            Some(ring) => Some((GrantRef(ring), keys.port("event-channel-ctrl")?)),
            None => None,
        };
        let queues = (0..asked).map(nth_queue).collect::<Result<_, _>>()?;
        let request = FrontendKeys {
            queues,
            features,
            control,
            device_queue: DeviceQueueKeys::read(nodes, path)?,
        };
        request.check()?;
        Ok(request)
    }

    /// No page and no event channel may serve twice.
    fn check(&self) -> Result<(), KeyError> {
        let (ring, port) = self.control.unzip();
        let mut rings: Vec<GrantRef> =
            self.queues.iter().flat_map(|queue| [queue.tx_ring, queue.rx_ring]).collect();
        rings.extend(ring);
        rings.extend(self.device_queue.iter().flat_map(|keys| [keys.ring, keys.list]));
        let mut ports: Vec<RemotePort> = self.queues.iter().map(|queue| queue.tx_port).collect();
        ports.extend(self.queues.iter().filter_map(|queue| queue.rx_port));
        ports.extend(port);
        ports.extend(self.device_queue.map(|keys| keys.port));
        check_distinct(rings, ports)
    }
}

/// Whether the frontend with directory `path` receives only the multicast groups that it names
/// (`request-multicast-control`). This may change at any time.
///
/// # Errors
/// When the store fails.
pub fn wants_groups(nodes: &dyn Nodes, path: &str) -> Result<bool, StoreError> {
    match Keys::new(nodes, path).flag("request-multicast-control") {
        Err(StoreError::Value { .. }) => Ok(false),
        flag => flag,
    }
}

/// Reads the keys of a queue, which begin with `prefix`.
fn queue(keys: Keys<'_>, prefix: &str) -> Result<QueueKeys, KeyError> {
    let key = |name: &str| format!("{prefix}{name}");
    let (tx_port, rx_port) = match keys.number(&key("event-channel-tx"))? {
        Some(tx) => (RemotePort(tx), Some(keys.port(&key("event-channel-rx"))?)),
        None => (keys.port(&key("event-channel"))?, None),
    };
    Ok(QueueKeys {
        tx_ring: keys.ring(&key("tx-ring-ref"))?,
        rx_ring: keys.ring(&key("rx-ring-ref"))?,
        tx_port,
        rx_port,
    })
}

#[cfg(test)]
mod tests;
