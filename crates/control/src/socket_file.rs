//! The file of a listening socket of the daemon, which is private from the start and removed at the
//! end.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, Uid, chmod, chownat, fchmod, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use unix_socket::Permissions;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 32;

/// Why the daemon cannot listen at a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon listens there.
    #[error("another daemon is listening at {}: stop it first, or give {key} another path", .path.display())]
    Taken {
        /// The key of the configuration that has the path.
        key: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// The path is not a socket.
    #[error("{} exists and is not a socket: remove it, or give {key} another path", .path.display())]
    NotASocket {
        /// The key of the configuration that has the path.
        key: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen at {place} ({key}): {error}")]
    Io {
        /// The key of the configuration that has the path or the address.
        key: &'static str,
        /// The path or the address.
        place: String,
        /// The system's error.
        error: io::Error,
    },
}

/// The place of a new socket.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The key of the configuration that has the path.
    pub key: &'static str,
    pub path: &'a Path,
}

impl Place<'_> {
    /// The system refused.
    pub fn failed(&self, error: io::Error) -> SocketError {
        SocketError::Io { key: self.key, place: self.path.display().to_string(), error }
    }
}

/// The file of a socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the socket, so that only our own is removed.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// Listens at a new socket (mode 0600 by default), without blocking, and creates the
    /// directories above it. The socket of a daemon that crashed is replaced.
    ///
    /// # Errors
    /// When another daemon listens there, or the system refuses.
    pub fn create(
        place: Place<'_>,
        permissions: Permissions,
    ) -> Result<(SocketFile, OwnedFd), SocketError> {
        let listener = take_over(place, permissions)?;
        let path = place.path;
        Ok((SocketFile { path: path.to_owned(), identity: identity(path) }, listener))
    }

    /// The file of another process' socket, whose device and number are `identity`. It is removed
    /// with the value.
    pub fn adopt(path: &Path, identity: (u64, u64)) -> SocketFile {
        SocketFile { path: path.to_owned(), identity: Some(identity) }
    }

    /// Device and number of the file.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Listens at a path, after removing the socket of a daemon that crashed.
fn take_over(place: Place<'_>, permissions: Permissions) -> Result<OwnedFd, SocketError> {
    let Place { key, path } = place;
    let failed = |error: io::Error| place.failed(error);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(directory).map_err(failed)?;
    // Two daemons that start at once must not both find the socket stale. The lock ends with the
    // descriptor.
    let guard = fs::File::open(directory).map_err(failed)?;
    flock(&guard, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(SocketError::NotASocket { key, path: path.to_owned() });
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?
            }
            _ => return Err(SocketError::Taken { key, path: path.to_owned() }),
        },
    }
    listen_at(path, permissions).map_err(failed)
}

/// Binds a socket that is private from the start, because the file takes the mode of the
/// descriptor.
fn listen_at(path: &Path, permissions: Permissions) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let Permissions { mode, owner, group } = permissions;
    let mode = mode.unwrap_or(Mode::RUSR | Mode::WUSR);
    fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The mode is set again, because the process' mask may have reduced it.
    chmod(path, mode)?;
    if owner.is_some() || group.is_some() {
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        chownat(CWD, path, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}
