//! Requests of a server's owner to its thread, for the hand-over to another process.

use std::sync::mpsc::Sender;

use crate::transport::saved::{Files, HandOverError, Positions, SavedServer};

/// A request of the owner to the thread of a server.
pub(super) enum HandOverRequest {
    /// Report the state, and stop serving the front-end.
    Park(Sender<Result<(SavedServer, Files), HandOverError>>),
    /// Stop all vrings.
    Pause(Sender<Positions>),
    /// Continue as before. The channel is closed when the thread does.
    Unpark(Sender<()>),
    /// Start the vrings of another process.
    Start(Positions, Sender<Result<(), String>>),
}
