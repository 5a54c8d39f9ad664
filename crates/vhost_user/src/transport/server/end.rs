//! The end of a connection.

use thiserror::Error;

use super::fault::QueueFault;
use crate::transport::connection::ConnectionError;
use crate::transport::error::SessionError;

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum End {
    #[error("the front-end disconnected")]
    Disconnected,
    #[error("the port is removed")]
    Removed,
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{0}")]
    Fault(QueueFault),
}

impl End {
    /// Whether the front-end broke the protocol.
    pub(super) fn is_violation(&self) -> bool {
        !matches!(
            self,
            End::Disconnected
                | End::Removed
                | End::Connection(ConnectionError::Socket(_))
                | End::Session(SessionError::Unavailable(_))
        )
    }

    /// Whether this side ended the connection, so that its reason is shown.
    pub(super) fn is_refusal(&self) -> bool {
        self.is_violation() || matches!(self, End::Session(SessionError::Unavailable(_)))
    }
}
