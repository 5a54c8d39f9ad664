//! How front-ends are found.

use std::path::{Path, PathBuf};

use unix_socket::{Listener, Options, Permissions, SocketError, SocketType};

/// How the socket of a port is opened. Four front-ends may wait while another is connected.
pub fn listener(permissions: Permissions) -> Options {
    Options { kind: SocketType::STREAM, backlog: 4, permissions }
}

/// Which side opens the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// This side listens, front-ends connect.
    Server,
    /// This side connects, and keeps trying.
    Client,
}

/// Where front-ends are found.
pub enum Endpoint {
    /// Front-ends connect here.
    Listener(Listener),
    /// The front-end listens here.
    Path(PathBuf),
}

impl Endpoint {
    /// Opens the socket at `path`, where this side is to listen.
    ///
    /// # Errors
    /// When the path is taken or impossible.
    pub fn open(
        path: &Path,
        mode: Mode,
        permissions: Permissions,
    ) -> Result<Endpoint, SocketError> {
        match mode {
            Mode::Server => Listener::bind(path, listener(permissions)).map(Endpoint::Listener),
            Mode::Client => Ok(Endpoint::Path(path.into())),
        }
    }
}
