//! Why a vbd does not connect, or stops.

use std::path::PathBuf;

use hypervisor::{EventError, GrantError, StoreError};
use storage::image::ImageError;
use storage::queue::QueueError;
use thiserror::Error;

use super::negotiation::NegotiationError;
use super::queue::StartError;
use crate::xenbus::{DeviceError, KeyError};

/// Why a vbd does not connect, or stops.
#[derive(Debug, Error)]
pub enum VbdError {
    /// Its frontend's keys are not accepted.
    #[error(transparent)]
    Refused(#[from] NegotiationError),
    /// Its rings cannot be mapped.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// Its event channels cannot be bound.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A setting of the operator's is not valid, or the store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The configuration does not allow its image.
    #[error("{} is in none of the folders of images", .0.display())]
    Outside(PathBuf),
    /// A queue cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A queue's frontend broke the rules.
    #[error("queue {queue}: {error}")]
    Queue {
        /// The queue's number.
        queue: u16,
        /// The violation.
        error: QueueError,
    },
    /// The frontend has changed the keys of its connection.
    #[error("keys changed after connecting")]
    KeysChanged,
}

impl DeviceError for VbdError {
    fn keys_changed() -> Self {
        VbdError::KeysChanged
    }

    fn store_error(&self) -> Option<&StoreError> {
        match self {
            VbdError::Store(error)
            | VbdError::Refused(NegotiationError::Keys(KeyError::Store(error))) => Some(error),
            _ => None,
        }
    }

    /// Always false: copies that fail because the domain is gone only fail their requests.
    fn is_domain_gone(&self) -> bool {
        false
    }

    /// Whether the image may become available: it may be locked by a process that is about to end,
    /// or its file system may not be mounted yet. The guest waits for its disk meanwhile.
    fn is_unavailable(&self) -> bool {
        matches!(self, VbdError::Image(_))
    }
}
