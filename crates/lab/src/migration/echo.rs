//! A TCP stream to the guest and back, whose ends are compared.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::LIMIT;
use super::hosts::{GUEST, HostsError};
use crate::guest::{Deadline, Guest, GuestError, Namespace, Shell};

const PORT: u16 = 5000;
/// The noise, which is sent over and over.
const NOISE: usize = 1 << 20;
/// Bytes of one write or read.
const CHUNK: usize = 64 << 10;
/// How often a wait looks.
const STEP: Duration = Duration::from_millis(20);

/// Noise from the host to the guest's echo. One thread sends and another receives: a single one
/// would write to a guest whose own writes wait for that thread to read.
#[derive(Debug)]
pub struct Echo {
    _connection: Connection,
    stop: Arc<AtomicBool>,
    /// Gives the number of bytes that were sent.
    sender: JoinHandle<io::Result<u64>>,
    /// Gives the number of bytes that came back until the first wrong one.
    receiver: JoinHandle<io::Result<u64>>,
}

/// The stream, which ends when this value is dropped. Both threads end with it: what they have open
/// would keep the network.
#[derive(Debug)]
struct Connection(TcpStream);

impl Drop for Connection {
    fn drop(&mut self) {
        // An error means that the stream has ended.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Echo {
    /// Starts the guest's echo, and sends it noise without end: a megabyte, then a pause, and so
    /// on.
    ///
    /// # Errors
    /// When the guest refuses, or cannot be reached.
    pub fn start(network: &Namespace, guest: &Guest, pause: Duration) -> Result<Echo, HostsError> {
        let failed = |source| GuestError::Channel { what: "cannot start a stream", source };
        guest.spawn(&format!("nc -ll -p {PORT} -e cat"))?;
        let listens = format!("until netstat -ltn | grep -q ':{PORT} '; do usleep 50000; done");
        guest.must(&listens, LIMIT)?;
        let connect = || TcpStream::connect((GUEST, PORT));
        let connection = Connection(network.open(connect).map_err(failed)?);
        let mut noise = vec![0; NOISE];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut noise))
            .map_err(failed)?;
        let (noise, stop) = (Arc::<[u8]>::from(noise), Arc::<AtomicBool>::default());
        let [out, back] = [connection.0.try_clone(), connection.0.try_clone()];
        let (out, back) = (out.map_err(failed)?, back.map_err(failed)?);
        let (sent, ends) = (Arc::clone(&noise), Arc::clone(&stop));
        let sender = std::thread::spawn(move || send(out, &sent, pause, &ends));
        let receiver = std::thread::spawn(move || receive(back, &noise));
        Ok(Echo { _connection: connection, stop, sender, receiver })
    }

    /// Ends the noise, waits for the rest of it, and says whether what came back is what was sent.
    ///
    /// # Errors
    /// When the stream breaks, or does not end within `limit`.
    pub fn finish(self, limit: Duration) -> Result<bool, HostsError> {
        let failed = |source: io::Error| GuestError::Channel { what: "the stream broke", source };
        self.stop.store(true, Ordering::Relaxed);
        let mut deadline = Deadline::new(limit);
        while !(self.sender.is_finished() && self.receiver.is_finished()) {
            if deadline.is_over() {
                return Err(failed(io::ErrorKind::TimedOut.into()).into());
            }
            std::thread::sleep(STEP);
        }
        let bytes = |thread: JoinHandle<io::Result<u64>>| {
            thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map_err(failed)
        };
        let received = bytes(self.receiver)?;
        // The receiver ends the stream at the first wrong byte, and with it the sender.
        Ok(bytes(self.sender).is_ok_and(|sent| sent > 0 && sent == received))
    }
}

/// Sends until it is to stop, and lets the guest know of the end.
fn send(
    mut stream: TcpStream,
    noise: &[u8],
    pause: Duration,
    stop: &AtomicBool,
) -> io::Result<u64> {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = (sent % NOISE as u64) as usize;
        let chunk = &noise[at..at + CHUNK];
        stream.write_all(chunk)?;
        sent += chunk.len() as u64;
        let resumes = Instant::now() + pause;
        while at + CHUNK == NOISE && Instant::now() < resumes && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(STEP.min(pause));
        }
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(sent)
}

/// Receives until the guest ends the stream, or something else comes than was sent.
fn receive(mut stream: TcpStream, noise: &[u8]) -> io::Result<u64> {
    let (mut received, mut bytes) = (0, vec![0; CHUNK]);
    loop {
        let at = (received % NOISE as u64) as usize;
        let most = CHUNK.min(NOISE - at);
        let count = stream.read(&mut bytes[..most])?;
        if count == 0 {
            return Ok(received);
        }
        if bytes[..count] != noise[at..at + count] {
            stream.shutdown(Shutdown::Both)?;
            return Ok(received);
        }
        received += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [client, listener.accept().unwrap().0]
    }

    #[test]
    fn a_damaged_byte_ends_the_count() {
        let noise: Vec<u8> = (0..NOISE).map(|at| (at % 251) as u8).collect();
        let [ours, mut theirs] = pair();
        let damaged = noise.len() + 70_000;
        let all = noise.clone();
        let receiver = std::thread::spawn(move || receive(ours, &all));
        theirs.write_all(&noise).unwrap();
        theirs.write_all(&noise[..70_000]).unwrap();
        // The next bytes come late: a read gives all that is there.
        std::thread::sleep(STEP);
        // The receiver may have closed the connection.
        let _ = theirs.write_all(&[!noise[70_000]; 10]);
        drop(theirs);
        assert!(receiver.join().unwrap().unwrap() <= damaged as u64);
    }
}
