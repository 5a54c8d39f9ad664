//! The socket on which a front-end reads requests of the back-end (`SET_BACKEND_REQ_FD`).
//!
//! The front-end may have sent any descriptor, and may never read. So messages are sent without
//! waiting, and a message that finds no room is lost. None of them asks for a reply.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SendFlags, send};

use super::message::encode_backend_request;

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;

/// A front-end's socket for requests of the back-end.
pub(super) struct BackendChannel(OwnedFd);

impl BackendChannel {
    pub(super) fn new(socket: OwnedFd) -> BackendChannel {
        BackendChannel(socket)
    }

    /// The socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The configuration space has changed.
    pub(super) fn announce_config_change(&self) {
        let message = encode_backend_request(CONFIG_CHANGE);
        // If the descriptor is no socket, closed or full, only the front-end loses.
        let _ = send(&self.0, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}
