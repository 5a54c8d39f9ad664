//! Negotiation between the two ends of a vbd, by keys in the store (blkif.h, "Feature and Parameter
//! Negotiation").
//!
//! All keys of the frontend are read once and checked as a whole. A change while it is connected
//! ends the connection.

use hypervisor::{GrantRef, Nodes, RemotePort, StoreError};
use thiserror::Error;

use super::layout::Layout;
use super::request::MAX_INDIRECT_SEGMENTS;
use crate::xenbus::keys::{KeyError, Keys, check_distinct};

/// The largest ring, as the logarithm of its pages.
pub const MAX_RING_ORDER: u32 = 4;

/// Writes the offer to a frontend into the backend's directory `path`.
///
/// # Errors
/// When the store fails.
pub fn write_offer(nodes: &dyn Nodes, path: &str, queues: u16) -> Result<(), StoreError> {
    nodes.put(&format!("{path}/multi-queue-max-queues"), queues)?;
    nodes.put(&format!("{path}/max-ring-page-order"), MAX_RING_ORDER)?;
    nodes.put(&format!("{path}/feature-max-indirect-segments"), MAX_INDIRECT_SEGMENTS)
}

/// Whether an end of a vbd, whose directory is `path`, knows persistent grants. Any other value
/// than 1, which no end writes, means no.
///
/// # Errors
/// When the store fails.
pub fn is_persistent(nodes: &dyn Nodes, path: &str) -> Result<bool, StoreError> {
    Ok(nodes.find(&format!("{path}/feature-persistent"))?.as_deref() == Some("1"))
}

/// Why the keys of a frontend are not accepted.
#[derive(Debug, Error)]
pub enum NegotiationError {
    /// A key is missing or not valid, whatever the class of the device.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The layout of its slots is unknown.
    #[error("protocol is {0:?}, x86_64-abi and x86_32-abi are possible")]
    Protocol(String),
    /// Its rings have too many pages.
    #[error("ring-page-order is {0}, 0 to {MAX_RING_ORDER} are possible")]
    Order(u32),
}

impl From<StoreError> for NegotiationError {
    fn from(error: StoreError) -> Self {
        NegotiationError::Keys(error.into())
    }
}

/// The keys of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueKeys {
    /// The pages of its ring.
    pub ring: Vec<GrantRef>,
    /// Its event channel.
    pub port: RemotePort,
}

/// All keys of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendKeys {
    /// The layout of its slots.
    pub layout: Layout,
    /// Its queues, at least one.
    pub queues: Vec<QueueKeys>,
}

impl FrontendKeys {
    /// Reads and checks the keys of the frontend with directory `path`, which may have up to
    /// `offered` queues.
    ///
    /// # Errors
    /// The first key that is not accepted.
    pub fn read(
        nodes: &dyn Nodes,
        path: &str,
        offered: u16,
    ) -> Result<FrontendKeys, NegotiationError> {
        let keys = Keys::new(nodes, path);
        let protocol = nodes.find(&format!("{path}/protocol"))?;
        let layout = Layout::named(protocol.as_deref());
        let layout = layout.ok_or_else(|| {
            NegotiationError::Protocol(protocol.unwrap_or_default().chars().take(64).collect())
        })?;
        let order = keys.number("ring-page-order")?;
        if let Some(order) = order.filter(|order| *order > MAX_RING_ORDER) {
            return Err(NegotiationError::Order(order));
        }
        let count = keys.queues(offered)?;
        // The keys of a single queue have no prefix.
        let queue = |n: u16| match count {
            1 => queue(keys, "", order),
            _ => queue(keys, &format!("queue-{n}/"), order),
        };
        let queues = (0..count).map(queue).collect::<Result<Vec<_>, _>>()?;
        let pages = queues.iter().flat_map(|queue| queue.ring.iter().copied()).collect();
        check_distinct(pages, queues.iter().map(|queue| queue.port).collect())?;
        Ok(FrontendKeys { layout, queues })
    }
}

/// Reads the keys of a queue, which begin with `prefix`. A frontend that gives an order, even that
/// of one page, numbers its pages. Keys of the other kind may be left from an earlier connection.
fn queue(keys: Keys<'_>, prefix: &str, order: Option<u32>) -> Result<QueueKeys, KeyError> {
    let ring = match order {
        None => vec![keys.ring(&format!("{prefix}ring-ref"))?],
        Some(order) => (0..1 << order)
            .map(|n| keys.ring(&format!("{prefix}ring-ref{n}")))
            .collect::<Result<_, _>>()?,
    };
    Ok(QueueKeys { ring, port: keys.port(&format!("{prefix}event-channel"))? })
}

#[cfg(test)]
mod tests;
