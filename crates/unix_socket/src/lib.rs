//! Unix sockets where guests and front-ends find a port: paths in the file system.
//!
//! A listener replaces the socket of a process that is gone, never one that somebody listens on,
//! and never a file that is no socket. A dropped listener removes only its own file.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Uid, chmod, chownat, fchmod, lstat, unlink,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, accept_with, bind, connect, listen, socket_with,
};
use thiserror::Error;

pub use rustix::net::SocketType;

/// Why a socket cannot be opened.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error("{}: a socket's path may have at most 107 bytes", .0.display())]
    TooLong(PathBuf),
    /// Another process listens there.
    #[error("{}: another process listens on this socket", .0.display())]
    InUse(PathBuf),
    /// The path is not a socket's.
    #[error("{}: exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The file cannot be given to its owner or group.
    #[error(
        "{}: cannot be given to its owner or group: {}; the daemon may give sockets to owners and \
         groups that its configuration names",
        .0.display(),
        .1
    )]
    NotGiven(PathBuf, io::Error),
    /// The kernel refused.
    #[error("{}: {}", .0.display(), .1)]
    Os(PathBuf, io::Error),
}

fn address(path: &Path) -> Result<SocketAddrUnix, SocketError> {
    SocketAddrUnix::new(path).map_err(|_| SocketError::TooLong(path.into()))
}

fn open(path: &Path, kind: SocketType) -> Result<OwnedFd, SocketError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, kind, flags, None).map_err(|e| os(path, e))
}

fn os(path: &Path, errno: Errno) -> SocketError {
    SocketError::Os(path.into(), errno.into())
}

/// Connects to the process that listens at `path`.
///
/// # Errors
/// When no process listens there, or its queue is full.
pub fn connect_to(path: &Path, kind: SocketType) -> Result<OwnedFd, SocketError> {
    let socket = open(path, kind)?;
    connect(&socket, &address(path)?).map_err(|e| os(path, e))?;
    Ok(socket)
}

/// How a listener is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes or messages.
    pub kind: SocketType,
    /// Connections that may wait to be accepted.
    pub backlog: i32,
    /// The users that may connect.
    pub permissions: Permissions,
}

/// The users that may connect to a listener. The file has these permissions from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    /// Mode; `None`: as the process' mask allows.
    pub mode: Option<Mode>,
    /// Owner; `None`: this process' user.
    pub owner: Option<u32>,
    /// Group; `None`: this process' group.
    pub group: Option<u32>,
}

/// A listening socket. A dropped listener removes its file, unless another file has replaced it.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    file: (u64, u64),
    /// Whether the file belongs to this process, which then removes it.
    owns_file: bool,
}

impl Listener {
    /// Listens at `path`. A file that a process left behind is replaced; one that a process still
    /// listens on is not.
    ///
    /// # Errors
    /// When the path is taken or impossible.
    pub fn bind(path: &Path, options: Options) -> Result<Listener, SocketError> {
        let address = address(path)?;
        let socket = open(path, options.kind)?;
        // The file takes over the mode that the socket has when it is bound, less the process'
        // mask. Nobody can connect before it is listened on.
        if let Some(mode) = options.permissions.mode {
            fchmod(&socket, mode).map_err(|e| os(path, e))?;
        }
        let bound = match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, options.kind)?;
                bind(&socket, &address)
            }
            other => other,
        };
        bound.map_err(|e| {
            if e == Errno::ADDRINUSE { SocketError::InUse(path.into()) } else { os(path, e) }
        })?;
        let file = identity(&lstat(path).map_err(|e| os(path, e))?);
        let listener = Listener { socket, path: path.into(), file, owns_file: true };
        if let Some(mode) = options.permissions.mode {
            chmod(path, mode).map_err(|e| os(path, e))?;
        }
        listener.give_away(options.permissions)?;
        listen(&listener.socket, options.backlog).map_err(|e| os(path, e))?;
        Ok(listener)
    }

    /// Adopts a socket on which another process also listens at `path`.
    ///
    /// `file` is the file's device and inode number. The file belongs to the other process until
    /// [`own`](Self::own).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn adopt(socket: OwnedFd, path: &Path, file: (u64, u64)) -> io::Result<Listener> {
        // The other process shares the socket, and could have made it block.
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Listener { socket, path: path.into(), file, owns_file: false })
    }

    /// Takes the file over: a dropped listener then removes the file.
    pub fn own(&mut self) {
        self.owns_file = true;
    }

    /// Device and number of the file.
    pub fn file(&self) -> (u64, u64) {
        self.file
    }

    /// Gives the file to its owner and group. Nobody can connect before it is listened on.
    fn give_away(&self, permissions: Permissions) -> Result<(), SocketError> {
        let Permissions { owner, group, .. } = permissions;
        if owner.is_none() && group.is_none() {
            return Ok(());
        }
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let given = chownat(CWD, &self.path, owner, group, flags);
        given.map_err(|error| SocketError::NotGiven(self.path.clone(), error.into()))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.owns_file && lstat(&self.path).is_ok_and(|stat| identity(&stat) == self.file) {
            // The error is ignored: a file that cannot be removed stays.
            let _ = unlink(&self.path);
        }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Removes a socket on which no process listens. A socket of another kind counts as one with a
/// listener.
fn remove_stale(path: &Path, kind: SocketType) -> Result<(), SocketError> {
    match lstat(path) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Socket => {}
        Ok(_) => return Err(SocketError::NotASocket(path.into())),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(os(path, errno)),
    }
    match connect(open(path, kind)?, &address(path)?) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
            return Err(SocketError::InUse(path.into()));
        }
        Err(errno) => return Err(os(path, errno)),
    }
    match unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(os(path, errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn bind(path: &Path) -> Result<Listener, SocketError> {
        let mode = Some(Mode::RUSR | Mode::WUSR);
        let permissions = Permissions { mode, ..Permissions::default() };
        Listener::bind(path, Options { kind: SocketType::STREAM, backlog: 4, permissions })
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        drop(UnixListener::bind(&path).unwrap());
        let listener = bind(&path).unwrap();
        let _front = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        assert!(listener.accept().unwrap().is_none());
    }

    #[test]
    fn a_live_socket_is_not_stolen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        let _live = UnixListener::bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(SocketError::InUse(_))));
        assert!(path.exists());
    }

    #[test]
    fn the_file_has_the_mode_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        let _listener = bind(&path).unwrap();
        assert_eq!(lstat(&path).unwrap().st_mode & 0o777, 0o600);
        let permissions = Permissions::default();
        let other = Options { kind: SocketType::SEQPACKET, backlog: 4, permissions };
        assert!(matches!(Listener::bind(&path, other), Err(SocketError::InUse(_))));
    }

    #[test]
    fn the_file_has_the_owner_and_group_that_were_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        let mode = Some(Mode::RWXU | Mode::RWXG | Mode::RWXO);
        let permissions = Permissions { mode, owner: Some(4242), group: Some(4343) };
        let options = Options { kind: SocketType::STREAM, backlog: 4, permissions };
        let listener = Listener::bind(&path, options);
        if rustix::process::geteuid().is_root() {
            let _listener = listener.unwrap();
            let stat = lstat(&path).unwrap();
            assert_eq!((stat.st_uid, stat.st_gid), (4242, 4343));
            assert_eq!(stat.st_mode & 0o777, 0o777, "whatever the mask is");
        } else {
            assert!(matches!(listener, Err(SocketError::NotGiven(..))));
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(SocketError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_file_goes_with_the_listener_unless_it_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        drop(bind(&path).unwrap());
        assert!(!path.exists());
        let ours = bind(&path).unwrap();
        // Made before the old one goes, so that it cannot have the same inode number.
        let other = dir.path().join("other.sock");
        let _theirs = UnixListener::bind(&other).unwrap();
        std::fs::rename(&other, &path).unwrap();
        drop(ours);
        assert!(path.exists());
    }

    #[test]
    fn impossible_paths_are_named() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        assert!(matches!(bind(&long), Err(SocketError::TooLong(_))));
        let nowhere = Path::new("/nonexistent/port.sock");
        let error = bind(nowhere).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/port.sock: "), "{error}");
        assert!(connect_to(nowhere, SocketType::STREAM).is_err());
    }
}
