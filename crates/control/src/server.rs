//! The control socket: accepts connections and answers their lines.
//!
//! The socket can be used by the daemon's own user only. Still, a client that hangs, sends without
//! end or opens connections without end cannot block the daemon: the length of lines, the time of
//! requests and the number of connections are limited.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, Uid, chmod, chownat, fchmod, flock};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use serde_json::Value as Json;
use unix_socket::Permissions;

use crate::api::{Answer, Reply, Request, VERSION};
use crate::line;

/// Longest request in bytes.
const LONGEST_REQUEST: usize = 64 << 10;
/// How long a client may take for one request, and again for reading the answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most connections at a time.
const MAX_CONNECTIONS: usize = 32;
/// Stack of a connection's thread, in bytes.
const STACK: usize = 256 << 10;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another daemon listens there.
    #[error("another daemon is listening at {}: stop it first, or give control.socket another path", .0.display())]
    Taken(PathBuf),
    /// The path is not a socket.
    #[error("{} exists and is not a socket: remove it, or give control.socket another path", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen at {}: {error}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// Who may use the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlAccess {
    /// The permissions of the socket's file; by default, mode 0600.
    pub permissions: Permissions,
    /// A user whose processes are refused although the file lets them connect: the one that the
    /// daemon has become, which other programs may run as.
    pub refused: Option<u32>,
}

/// Carries out requests.
pub trait Handler: Send + Sync + 'static {
    /// Carries out one request.
    ///
    /// # Errors
    /// The problems, in lines for people.
    fn handle(&self, request: Request) -> Result<Reply, String>;
}

/// A control socket that is being served. Dropping it closes all connections and removes the
/// socket.
pub struct Server {
    path: PathBuf,
    /// Device and inode of the socket, so that only our own is removed.
    identity: Option<(u64, u64)>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Creates the socket (mode 0600 by default, and the directories above it) and serves it from a thread of
    /// its own. The socket of a daemon that crashed is replaced.
    ///
    /// # Errors
    /// When another daemon listens there, or the system refuses.
    pub fn start(
        path: &Path,
        access: ControlAccess,
        handler: Arc<dyn Handler>,
    ) -> Result<Server, ServerError> {
        let failed = |error: io::Error| ServerError::Io { path: path.to_owned(), error };
        let listener = take_over(path, access.permissions)?;
        let stop = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(io::Error::from)
                .map_err(failed)?,
        );
        let acceptor = Acceptor {
            listener,
            refused: access.refused,
            stop: Arc::clone(&stop),
            handler,
            connections: Vec::new(),
        };
        let thread = Builder::new()
            .name("rm-control".into())
            .spawn(move || acceptor.run())
            .map_err(failed)?;
        Ok(Server { path: path.to_owned(), identity: identity(path), stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Cannot fail: the counter is far from full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Listens at `path`, after removing the socket of a daemon that crashed.
fn take_over(path: &Path, permissions: Permissions) -> Result<UnixListener, ServerError> {
    let failed = |error: io::Error| ServerError::Io { path: path.to_owned(), error };
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
            return Err(ServerError::NotASocket(path.to_owned()));
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?
            }
            _ => return Err(ServerError::Taken(path.to_owned())),
        },
    }
    listen_at(path, permissions).map_err(failed)
}

/// Binds a socket that is private from its first moment: the file takes the mode of the descriptor.
fn listen_at(path: &Path, permissions: Permissions) -> io::Result<UnixListener> {
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
    // Without what the process' mask took away.
    chmod(path, mode)?;
    if owner.is_some() || group.is_some() {
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        chownat(CWD, path, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    listen(&socket, MAX_CONNECTIONS as i32)?;
    Ok(UnixListener::from(socket))
}

/// The thread that accepts connections.
struct Acceptor {
    listener: UnixListener,
    /// A user whose processes are refused.
    refused: Option<u32>,
    stop: Arc<OwnedFd>,
    handler: Arc<dyn Handler>,
    connections: Vec<(UnixStream, JoinHandle<()>)>,
}

impl Acceptor {
    fn run(mut self) {
        while self.wait() {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    // Out of descriptors, most likely: that may pass.
                    tracing::warn!(reason = %error, "the control socket cannot accept a connection");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        for (stream, thread) in self.connections.drain(..) {
            // Ends its reads and writes. This fails if the client has closed it.
            let _ = stream.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
    }

    /// Waits for a connection. False when the server is to end.
    fn wait(&self) -> bool {
        let mut fds =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
        // A wait that a signal interrupts has found nothing.
        let _ = poll(&mut fds, None);
        fds.get(1).is_some_and(|stop| stop.revents().is_empty())
    }

    fn admit(&mut self, mut stream: UnixStream) {
        if let Some(user) = self.refused
            && socket_peercred(&stream).is_ok_and(|peer| peer.uid.as_raw() == user)
        {
            let answer = refusal(
                "the user that the daemon runs as may not command it; set control.owner to allow it"
                    .to_owned(),
            );
            let _ = line::write(&mut stream, &answer, Instant::now() + Duration::from_millis(10));
            return;
        }
        self.connections.retain(|(_, thread)| !thread.is_finished());
        if self.connections.len() >= MAX_CONNECTIONS {
            let answer = refusal(format!(
                "{MAX_CONNECTIONS} control connections are open already: try again later"
            ));
            let _ = line::write(&mut stream, &answer, Instant::now() + Duration::from_millis(10));
            return;
        }
        let handler = Arc::clone(&self.handler);
        let Ok(own) = stream.try_clone() else { return };
        let thread =
            Builder::new().name("rm-control-peer".into()).stack_size(STACK).spawn(move || {
                // A client that is gone cannot be told of an error.
                let _ = serve(&mut stream, &*handler);
                let _ = stream.shutdown(Shutdown::Both);
            });
        if let Ok(thread) = thread {
            self.connections.push((own, thread));
        }
    }
}

/// Answers lines until the peer closes, is too slow, or sends one that is too long.
fn serve(stream: &mut UnixStream, handler: &dyn Handler) -> io::Result<()> {
    let mut rest = Vec::new();
    loop {
        let line = match line::read(stream, &mut rest, LONGEST_REQUEST, Instant::now() + TIMEOUT) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                let answer = refusal(format!("the request is longer than {LONGEST_REQUEST} bytes"));
                return line::write(stream, &answer, Instant::now() + TIMEOUT);
            }
            Err(error) => return Err(error),
        };
        let answer = match parse(&line).and_then(|request| handler.handle(request)) {
            Ok(reply) => encoded(&Answer { version: VERSION, ok: Some(reply), error: None }),
            Err(error) => refusal(error),
        };
        line::write(stream, &answer, Instant::now() + TIMEOUT)?;
    }
}

fn parse(line: &[u8]) -> Result<Request, String> {
    let mut json: Json = serde_json::from_slice(line)
        .map_err(|error| format!("the request is not JSON: {error}"))?;
    let object = json.as_object_mut().ok_or("the request is not a JSON object")?;
    match object.remove("version").as_ref().and_then(Json::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(format!(
                "version {version} of the protocol is not supported, only version {VERSION}"
            ));
        }
        None => return Err(format!("the request has no version; give \"version\": {VERSION}")),
    }
    serde_json::from_value(json).map_err(|error| format!("the request is not understood: {error}"))
}

fn refusal(error: String) -> Vec<u8> {
    encoded(&Answer { version: VERSION, ok: None, error: Some(error) })
}

fn encoded(answer: &Answer) -> Vec<u8> {
    // Every type in an answer can be written; an empty line would be refused by the client.
    let mut bytes = serde_json::to_vec(answer).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests;
