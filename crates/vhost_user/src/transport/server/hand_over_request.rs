//! What the owner of a server asks its thread, where another process goes on with the server.

use std::sync::mpsc::Sender;

use crate::transport::saved::{Files, HandOverError, Positions, SavedServer};

/// A request of the owner to the thread of a server.
pub(super) enum HandOverRequest {
    /// To say how things are, and to serve nobody from then on.
    Park(Sender<Result<(SavedServer, Files), HandOverError>>),
    /// To stop all vrings.
    Pause(Sender<Positions>),
    /// To go on as before. Closed when it does.
    Unpark(Sender<()>),
    /// To start the vrings of another process.
    Start(Positions, Sender<Result<(), String>>),
}
