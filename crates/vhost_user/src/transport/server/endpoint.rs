//! How front-ends are found.

use std::io;
use std::path::{Path, PathBuf};

use unix_socket::{Listener, Options, Permissions, SocketError, SocketType};

use crate::transport::saved::{Files, HandOverError, SavedListener};

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

/// The socket at which front-ends are found.
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

    /// The endpoint of another process at `path`.
    ///
    /// # Errors
    /// When it is of another mode.
    pub fn restore(
        path: &Path,
        mode: Mode,
        saved: Option<&SavedListener>,
        files: &mut Files,
    ) -> Result<Endpoint, HandOverError> {
        match (mode, saved) {
            (Mode::Server, Some(saved)) => {
                let socket = files.take(saved.socket)?;
                Ok(Endpoint::Listener(Listener::adopt(socket, path, saved.file)?))
            }
            (Mode::Client, None) => Ok(Endpoint::Path(path.into())),
            _ => Err(HandOverError::Unusable("its socket is of another mode".to_owned())),
        }
    }

    /// The listening socket, for another process.
    pub(super) fn save(&self, files: &mut Files) -> io::Result<Option<SavedListener>> {
        let Endpoint::Listener(listener) = self else { return Ok(None) };
        Ok(Some(SavedListener { socket: files.add(listener)?, file: listener.file() }))
    }

    /// Notes that only this process has the endpoint now.
    pub(super) fn own(&mut self) {
        if let Endpoint::Listener(listener) = self {
            listener.own();
        }
    }
}
