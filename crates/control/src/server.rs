//! The control socket: accepts connections and answers their lines.
//!
//! Only the daemon's own user can use the socket by default. A client that hangs, or that sends or
//! connects without end, cannot block the daemon: the length of lines, the time of requests and the
//! number of connections are limited.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use sandbox::Role;
use serde_json::Value as Json;
use unix_socket::Permissions;

use crate::acceptor::{Acceptor, Connections};
use crate::api::{Answer, CaptureRequest, Manifest, Reply, Request, VERSION};
use crate::capture::CaptureSession;
use crate::hand_over::{Adopted, Shared};
use crate::line;
use crate::socket_file::{Place, SocketError, SocketFile};

/// Longest request in bytes.
const LONGEST_REQUEST: usize = 64 << 10;
/// The time that a client has for one request, and again for reading the answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most connections at a time.
const MAX_CONNECTIONS: usize = 32;

/// The users that may use the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlAccess {
    /// The permissions of the socket's file; by default, mode 0600.
    pub permissions: Permissions,
    /// A user whose processes are refused although the file's permissions let them connect. The
    /// daemon runs as this user, and other programs may do so as well.
    pub refused: Option<u32>,
}

/// Carries out requests.
pub trait Handler: Send + Sync + 'static {
    /// Carries out one request.
    ///
    /// # Errors
    /// The problems, in lines for people.
    fn handle(&self, request: Request) -> Result<Reply, String>;

    /// Starts a capture, which is served in place of further requests.
    ///
    /// # Errors
    /// The problem, in a line for people.
    fn capture(&self, request: CaptureRequest) -> Result<CaptureSession, String>;

    /// The list of what the daemon serves, for a process that is about to take over and understands
    /// these formats of state.
    ///
    /// # Errors
    /// The obstacles, in lines for people.
    fn offer(&self, formats: &[u32]) -> Result<Manifest, String> {
        let _ = formats;
        Err("nothing can be handed over".to_owned())
    }

    /// Hands over to the process at the other end of a connection, which has the manifest. Returns
    /// if this process continues.
    fn give(&self, stream: UnixStream) {
        drop(stream);
    }
}

/// A control socket that is being served. Dropping it closes all connections and removes the
/// socket.
pub struct Server {
    // The order of drops matters: no client is served at a removed socket.
    acceptor: Acceptor,
    file: SocketFile,
}

impl Server {
    /// Creates the socket (mode 0600 by default, and the directories above it) and serves it from a
    /// thread of its own. The socket of a daemon that crashed is replaced.
    ///
    /// # Errors
    /// When another daemon listens there, or the system refuses.
    pub fn start(
        path: &Path,
        access: ControlAccess,
        handler: Arc<dyn Handler>,
    ) -> Result<Server, SocketError> {
        let place = Place { key: "control.socket", path };
        let (file, listener) = SocketFile::create(place, access.permissions)?;
        Server::serve(place, access, (file, listener), handler)
    }

    /// Serves the socket of another process, which ends.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn adopt(
        path: &Path,
        access: ControlAccess,
        Adopted { socket, file }: Adopted,
        handler: Arc<dyn Handler>,
    ) -> Result<Server, SocketError> {
        let place = Place { key: "control.socket", path };
        Server::serve(place, access, (SocketFile::adopt(path, file), socket), handler)
    }

    fn serve(
        place: Place<'_>,
        access: ControlAccess,
        (file, listener): (SocketFile, OwnedFd),
        handler: Arc<dyn Handler>,
    ) -> Result<Server, SocketError> {
        let clients = Clients { refused: access.refused, handler };
        let acceptor = Acceptor::start(listener, clients).map_err(|error| place.failed(error))?;
        Ok(Server { acceptor, file })
    }

    /// The listening socket, for a process that takes over.
    pub(crate) fn shared(&self) -> Shared {
        Shared { socket: Arc::clone(self.acceptor.listener()), file: self.file.identity() }
    }
}

/// Clients of the control socket.
struct Clients {
    /// A user whose processes are refused.
    refused: Option<u32>,
    handler: Arc<dyn Handler>,
}

impl Connections for Clients {
    const SOCKET: &'static str = "control";
    const THREADS: [&'static str; 2] = ["rm-control", "rm-control-peer"];
    // Clients add ports of any kind.
    const ROLES: Option<[Role; 2]> = None;
    const MOST: usize = MAX_CONNECTIONS;

    fn serve(&self, stream: &mut UnixStream) {
        if let Some(user) = self.refused
            && socket_peercred(&*stream).is_ok_and(|peer| peer.uid.as_raw() == user)
        {
            answer_shortly(
                stream,
                "the user that the daemon runs as may not command it; set control.owner to allow it"
                    .to_owned(),
            );
            return;
        }
        // An error cannot be reported to a client that is gone.
        let _ = serve(stream, &*self.handler);
    }

    fn turn_away(&self, stream: &mut UnixStream) {
        answer_shortly(
            stream,
            format!("{MAX_CONNECTIONS} control connections are open already: try again later"),
        );
    }
}

/// Refuses a client without waiting for it.
fn answer_shortly(stream: &mut UnixStream, error: String) {
    let _ = line::write(stream, &refusal(error), Instant::now() + Duration::from_millis(10));
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
        let answer = match parse(&line) {
            Ok(Request::Capture(request)) => match handler.capture(request) {
                Ok(session) => {
                    line::write(stream, &reply(Reply::Done), Instant::now() + TIMEOUT)?;
                    return session.serve(stream);
                }
                Err(error) => refusal(error),
            },
            Ok(Request::TakeOver { formats }) => {
                match may_take_over(stream).and_then(|()| handler.offer(&formats)) {
                    Ok(manifest) => {
                        let answer = reply(Reply::TakeOver(manifest));
                        line::write(stream, &answer, Instant::now() + TIMEOUT)?;
                        handler.give(stream.try_clone()?);
                        return Ok(());
                    }
                    Err(error) => refusal(error),
                }
            }
            Ok(request) => handler.handle(request).map_or_else(refusal, reply),
            Err(error) => refusal(error),
        };
        line::write(stream, &answer, Instant::now() + TIMEOUT)?;
    }
}

/// Checks that the client is the daemon's own user or root: only these may get guests' memory, even
/// if others may use the socket.
fn may_take_over(stream: &UnixStream) -> Result<(), String> {
    let own = rustix::process::geteuid();
    let is_allowed = |uid: rustix::process::Uid| uid == own || uid.is_root();
    match socket_peercred(stream) {
        Ok(peer) if is_allowed(peer.uid) => Ok(()),
        _ => Err("only root and the user that the daemon runs as may take over".to_owned()),
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

fn reply(reply: Reply) -> Vec<u8> {
    encoded(&Answer { version: VERSION, ok: Some(reply), error: None })
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
