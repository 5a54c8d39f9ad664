//! Lines over a UNIX stream, read and written against a deadline.
//!
//! A peer that sends single bytes slowly, or never reads, occupies a thread only until the
//! deadline. A peer that sends without end is cut off at the limit.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Reads up to the next newline, which is not part of the result. `None`: the peer closed the
/// stream before it.
///
/// # Errors
/// `TimedOut` after the deadline, `InvalidData` when the line is longer than `limit` bytes, or what
/// the socket reports.
pub fn read(
    stream: &mut UnixStream,
    rest: &mut Vec<u8>,
    limit: usize,
    by: Instant,
) -> io::Result<Option<Vec<u8>>> {
    let mut searched = 0;
    loop {
        if let Some(at) = rest[searched..].iter().position(|b| *b == b'\n') {
            let mut line: Vec<u8> = rest.drain(..=searched + at).collect();
            line.pop();
            return Ok(Some(line));
        }
        if rest.len() > limit {
            return Err(io::Error::new(ErrorKind::InvalidData, "the line is too long"));
        }
        searched = rest.len();
        stream.set_read_timeout(Some(remaining(by)?))?;
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(None),
            Ok(n) => rest.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(error) => retry_or(error)?,
        }
    }
}

/// Writes all of `bytes`.
///
/// # Errors
/// `TimedOut` after the deadline, or what the socket reports.
pub fn write(stream: &mut UnixStream, mut bytes: &[u8], by: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(remaining(by)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(error) => retry_or(error)?,
        }
    }
    Ok(())
}

/// Time until the deadline; never zero, which means no time-out to the socket.
pub fn remaining(by: Instant) -> io::Result<Duration> {
    let left = by.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(ErrorKind::TimedOut.into())
    } else {
        Ok(left.max(Duration::from_millis(1)))
    }
}

/// Whether to try again. After a time-out of the socket, [`remaining`] checks the deadline.
pub fn retry_or(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_stream_is_split_into_lines() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"one\ntwo\nthr").unwrap();
        let mut rest = Vec::new();
        assert_eq!(read(&mut here, &mut rest, 10, later()).unwrap().unwrap(), b"one");
        assert_eq!(read(&mut here, &mut rest, 10, later()).unwrap().unwrap(), b"two");
        there.write_all(b"ee\n").unwrap();
        assert_eq!(read(&mut here, &mut rest, 10, later()).unwrap().unwrap(), b"three");
        drop(there);
        assert!(read(&mut here, &mut rest, 10, later()).unwrap().is_none());
    }

    #[test]
    fn a_line_without_end_is_cut_off() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || while there.write_all(&[b'x'; 4096]).is_ok() {});
        let mut rest = Vec::new();
        let error = read(&mut here, &mut rest, 10_000, later()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(rest.len() <= 10_000 + 4096);
        drop(here);
        writer.join().unwrap();
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"half a li").unwrap();
        let error = read(&mut here, &mut Vec::new(), 100, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = write(&mut here, &vec![0; 10_000_000], soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
