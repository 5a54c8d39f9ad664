//! A client of a running daemon.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::api::{Answer, CaptureRequest, Profile, Reply, Request, VERSION};
use crate::line;

/// How long an answer may take. Removing a port waits for its workers. Other requests are answered
/// at once.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer in bytes; thousands of ports fit.
const LONGEST_ANSWER: usize = 64 << 20;

/// The time by which profiling exceeds the client's wait, in seconds: requests also take time.
const MARGIN: u32 = 2;

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens.
    #[error(
        "no daemon answers at {}: start one with `ringmain serve`, or give its socket with --control",
        .0.display()
    )]
    NoDaemon(PathBuf),
    /// The socket belongs to another user.
    #[error("{} may not be used by this user: run this as the user who runs the daemon, usually root", .0.display())]
    Denied(PathBuf),
    /// The daemon refused the request, with a reason.
    #[error("{0}")]
    Refused(String),
    /// The daemon has another version of the protocol.
    #[error(
        "the daemon speaks version {0} of the control protocol and this command version {VERSION}: \
         use the `ringmain` that the daemon was started from"
    )]
    Version(u32),
    /// The answer did not come, or could not be read.
    #[error("the daemon at {} did not answer ({error}): see its log", .socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A daemon, by its control socket. Each request has a connection of its own, so that a client
/// survives a restart of the daemon.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The daemon that listens at `socket`. There is no connection yet.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client { socket: socket.into() }
    }

    /// The control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request, and waits for the reply.
    ///
    /// # Errors
    /// When no daemon answers, or when it refuses.
    pub fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        self.converse(request).map(|(reply, _)| reply)
    }

    /// Starts a capture. Returns the connection and the first bytes, which have come already. The
    /// connection carries pcapng until the client shuts down its sending side or closes it.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn capture(&self, request: CaptureRequest) -> Result<(UnixStream, Vec<u8>), ClientError> {
        let (_, connection) = self.converse(&Request::Capture(request))?;
        Ok(connection)
    }

    /// Asks to take over from the daemon. Returns its answer, and the connection, which carries the
    /// state.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn take_over(&self, formats: Vec<u32>) -> Result<(Reply, UnixStream), ClientError> {
        let (reply, (stream, _)) = self.converse(&Request::TakeOver { formats })?;
        Ok((reply, stream))
    }

    /// Sends a request on a connection of its own. Returns the reply, the connection, and the bytes
    /// behind the reply.
    fn converse(&self, request: &Request) -> Result<(Reply, (UnixStream, Vec<u8>)), ClientError> {
        let mut stream =
            UnixStream::connect(&self.socket).map_err(|error| self.unreachable(error))?;
        let mut rest = Vec::new();
        let line =
            self.exchange(&mut stream, request, &mut rest).map_err(|error| self.broken(error))?;
        let answer: Json =
            serde_json::from_slice(&line).map_err(|error| self.broken(error.into()))?;
        let version = answer.get("version").and_then(Json::as_u64).unwrap_or(0);
        if version != u64::from(VERSION) {
            return Err(ClientError::Version(version.try_into().unwrap_or(0)));
        }
        match serde_json::from_value(answer) {
            Ok(Answer { ok: Some(reply), .. }) => Ok((reply, (stream, rest))),
            Ok(Answer { error: Some(error), .. }) => Err(ClientError::Refused(error)),
            Ok(_) => Err(self.broken(io::Error::new(ErrorKind::InvalidData, "an empty answer"))),
            Err(error) => Err(self.broken(error.into())),
        }
    }

    /// Profiles for a while.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn profile(&self, time: Duration) -> Result<Profile, ClientError> {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX).saturating_add(MARGIN);
        let look = |seconds| match self.ask(&Request::Profile { seconds })? {
            Reply::Profile(profile) => Ok(profile),
            _ => {
                Err(self
                    .broken(io::Error::new(ErrorKind::InvalidData, "an answer to another request")))
            }
        };
        let before = look(seconds)?;
        std::thread::sleep(time);
        Ok(look(0)?.since(&before))
    }

    fn exchange(
        &self,
        stream: &mut UnixStream,
        request: &Request,
        rest: &mut Vec<u8>,
    ) -> io::Result<Vec<u8>> {
        let by = Instant::now() + TIMEOUT;
        let mut line = serde_json::to_value(request)?;
        line["version"] = json!(VERSION);
        let silence = match line::write(stream, format!("{line}\n").as_bytes(), by) {
            Ok(()) => io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection"),
            // A daemon that turns a client away answers and closes without reading.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => error,
            Err(error) => return Err(error),
        };
        line::read(stream, rest, LONGEST_ANSWER, by)?.ok_or(silence)
    }

    fn unreachable(&self, error: io::Error) -> ClientError {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                ClientError::NoDaemon(self.socket.clone())
            }
            ErrorKind::PermissionDenied => ClientError::Denied(self.socket.clone()),
            _ => self.broken(error),
        }
    }

    fn broken(&self, error: io::Error) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The answer that a client gets from a daemon that sends `answer` and reads nothing.
    fn turned_away(answer: &[u8]) -> io::Result<Vec<u8>> {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        there.write_all(answer).unwrap();
        drop(there);
        Client::new("/nowhere").exchange(&mut here, &Request::Stats, &mut Vec::new())
    }

    #[test]
    fn a_client_that_is_turned_away_learns_why() {
        assert_eq!(turned_away(b"try again later\n").unwrap(), b"try again later");
        assert_eq!(turned_away(b"").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
