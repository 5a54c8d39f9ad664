//! The reason why a vif does not connect, or stops.

use hypervisor::{EventError, GrantError, StoreError};
use network::fabric::FabricError;
use network::port::QueueError;
use ring::Violation;
use ring::copies::Status;
use thiserror::Error;

use crate::netif::fault::Fault;
use crate::netif::negotiation::NegotiationError;
use crate::xenbus::{DeviceError, KeyError};

/// The reason why a vif does not connect, or stops.
#[derive(Debug, Error)]
pub enum VifError {
    /// The keys of the frontend are not accepted.
    #[error(transparent)]
    Refused(#[from] NegotiationError),
    /// The rings cannot be mapped.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The event channels cannot be bound.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A setting of the operator's is not valid, or the store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The fabric refuses the port.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The indices of a ring contradict each other from the start.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// The frontend broke the protocol on a queue.
    #[error("queue {queue}: {error}")]
    Queue {
        /// The queue's number.
        queue: u16,
        /// The error.
        error: QueueError,
    },
    /// The frontend broke the protocol in another way.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The frontend misused its control ring.
    #[error("control ring: {0}")]
    ControlRing(QueueError),
}

impl DeviceError for VifError {
    fn keys_changed() -> Self {
        VifError::Fault(Fault::KeysChanged)
    }

    fn store_error(&self) -> Option<&StoreError> {
        match self {
            VifError::Store(error)
            | VifError::Refused(NegotiationError::Keys(KeyError::Store(error))) => Some(error),
            _ => None,
        }
    }

    fn is_domain_gone(&self) -> bool {
        matches!(
            self,
            VifError::Queue { error: QueueError::Gone | QueueError::Grant(Status::BAD_DOMAIN), .. }
                | VifError::ControlRing(QueueError::Gone | QueueError::Grant(Status::BAD_DOMAIN))
        )
    }
}
