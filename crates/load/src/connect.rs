//! Sockets to back-ends, in either direction.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Error;

/// A listening socket, which is removed when it is dropped; or the path of a socket to connect to.
pub enum PortSocket {
    /// We listen.
    Ours(UnixListener, PathBuf),
    /// The back-end listens.
    Theirs(PathBuf),
}

impl PortSocket {
    /// Listens at `path`, and replaces a stale socket there; or remembers the path to connect to.
    ///
    /// # Errors
    /// When another process listens there, or no socket can be created at the path.
    pub fn new(path: &Path, listen: bool) -> Result<Self, Error> {
        if !listen {
            return Ok(Self::Theirs(path.into()));
        }
        let failed = |error| Error::Socket { path: path.into(), error };
        match UnixStream::connect(path) {
            Ok(_) => return Err(failed(io::ErrorKind::AddrInUse.into())),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        Ok(Self::Ours(listener, path.into()))
    }

    /// Waits for the back-end until `deadline`.
    ///
    /// # Errors
    /// When the back-end does not connect or listen in time.
    pub fn open(&self, deadline: Instant) -> Result<UnixStream, Error> {
        match self {
            Self::Ours(listener, path) => accept(listener, deadline).map_err(|e| failed(path, e)),
            Self::Theirs(path) => connect(path, deadline).map_err(|e| failed(path, e)),
        }
    }
}

impl Drop for PortSocket {
    fn drop(&mut self) {
        if let Self::Ours(_, path) = self {
            // Another process may have removed the socket already.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::Socket { path: path.into(), error }
}

fn accept(listener: &UnixListener, deadline: Instant) -> io::Result<UnixStream> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "no back-end connected")),
        _ => listener.accept().map(|(stream, _)| stream),
    }
}

fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Err(e) if not_yet(&e) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20))
            }
            result => return result,
        }
    }
}

/// Whether the back-end may still begin to listen.
fn not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the socket behind");
        let socket = PortSocket::new(&path, true).unwrap();
        assert!(PortSocket::new(&path, true).is_err(), "somebody listens");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn waiting_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        for listen in [true, false] {
            let socket = PortSocket::new(&path, listen).unwrap();
            assert!(socket.open(Instant::now()).is_err());
        }
    }
}
