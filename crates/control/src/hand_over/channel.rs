//! Messages with descriptors between two processes.
//!
//! A message is a header of three numbers (little endian, four bytes each): bytes of JSON, further
//! bytes, and descriptors. Descriptors follow in groups, each beside one byte, and then the JSON
//! and the bytes. All numbers are bounded, and the whole message must come before a deadline.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::line;

/// Most bytes of JSON in a message.
const MAX_JSON: usize = 16 << 20;
/// Most further bytes: a few thousand of the longest frames.
const MAX_BYTES: usize = 128 << 20;
/// Most descriptors: those of a port with 256 rings and 32 regions.
const MAX_FILES: usize = 1024;
/// Descriptors that are sent together; the kernel allows 253.
const GROUP: usize = 128;

/// The least time that is granted to the rest of a message whose beginning came in time.
const REST: Duration = Duration::from_secs(1);

/// A received message.
pub(crate) struct Received<T> {
    pub message: T,
    pub bytes: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

/// One end of the connection.
pub(crate) struct Channel(UnixStream);

/// Refuses a message beyond the bounds. The numbers are bytes of JSON, further bytes, and
/// descriptors.
fn check_bounds(numbers: [usize; 3]) -> io::Result<()> {
    let most = [(MAX_JSON, "characters"), (MAX_BYTES, "bytes"), (MAX_FILES, "descriptors")];
    match numbers.iter().zip(most).find(|(number, (most, _))| *number > most) {
        Some((_, (_, what))) => {
            let problem = format!("a message with too many {what}");
            Err(io::Error::new(ErrorKind::InvalidData, problem))
        }
        None => Ok(()),
    }
}

impl Channel {
    pub fn new(stream: UnixStream) -> Channel {
        Channel(stream)
    }

    /// Sends a message, with bytes and descriptors beside it.
    ///
    /// # Errors
    /// `TimedOut` after the deadline, or what the socket reports.
    pub fn send(
        &mut self,
        message: &impl Serialize,
        bytes: &[u8],
        files: &[OwnedFd],
        by: Instant,
    ) -> io::Result<()> {
        let json = serde_json::to_vec(message)?;
        let numbers = [json.len(), bytes.len(), files.len()];
        check_bounds(numbers)?;
        let numbers = numbers.map(|n| (n as u32).to_le_bytes());
        let header = numbers.as_flattened();
        if files.is_empty() {
            // A short message is sent in one piece: it arrives whole or not at all, even if the
            // peer cuts the connection meanwhile.
            return line::write(&mut self.0, &[header, &json, bytes].concat(), by);
        }
        line::write(&mut self.0, header, by)?;
        for group in files.chunks(GROUP) {
            self.send_group(group, by)?;
        }
        line::write(&mut self.0, &json, by)?;
        line::write(&mut self.0, bytes, by)
    }

    fn send_group(&self, group: &[OwnedFd], by: Instant) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = group.iter().map(AsFd::as_fd).collect();
        control.push(SendAncillaryMessage::ScmRights(&files));
        self.0.set_write_timeout(Some(line::remaining(by)?))?;
        sendmsg(&self.0, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives a message.
    ///
    /// # Errors
    /// `TimedOut` after the deadline, `InvalidData` for what is no message, `UnexpectedEof` when
    /// the peer is gone, or what the socket reports.
    pub fn receive<T: DeserializeOwned>(&mut self, by: Instant) -> io::Result<Received<T>> {
        let header = self.read(12, by)?;
        let (numbers, _) = header.as_chunks::<4>();
        let number = |at: usize| numbers.get(at).map_or(0, |n| u32::from_le_bytes(*n) as usize);
        let (json, bytes, count) = (number(0), number(1), number(2));
        // A message that has begun is read to its end: the stream cannot be parsed after half a
        // message.
        let by = by.max(Instant::now() + REST);
        check_bounds([json, bytes, count])?;
        let mut files = Vec::with_capacity(count);
        while files.len() < count {
            let group = (count - files.len()).min(GROUP);
            self.receive_group(group, &mut files, by)?;
        }
        let json = self.read(json, by)?;
        let bytes = self.read(bytes, by)?;
        Ok(Received { message: serde_json::from_slice(&json)?, bytes, files })
    }

    fn receive_group(&self, count: usize, to: &mut Vec<OwnedFd>, by: Instant) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (mut byte, before) = ([0], to.len());
        self.0.set_read_timeout(Some(line::remaining(by)?))?;
        let room = &mut [IoSliceMut::new(&mut byte)];
        let got = recvmsg(&self.0, room, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                to.extend(files);
            }
        }
        match (got.bytes, to.len() - before) {
            (0, _) => Err(ErrorKind::UnexpectedEof.into()),
            (_, came) if came == count => Ok(()),
            // Descriptors are also missing if this process has reached its limit.
            _ => Err(io::Error::new(ErrorKind::InvalidData, "descriptors are missing")),
        }
    }

    fn read(&mut self, len: usize, by: Instant) -> io::Result<Vec<u8>> {
        let (mut bytes, mut have) = (vec![0; len], 0);
        while let Some(room) = bytes.get_mut(have..).filter(|room| !room.is_empty()) {
            self.0.set_read_timeout(Some(line::remaining(by)?))?;
            match self.0.read(room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => have += n,
                Err(error) => line::retry_or(error)?,
            }
        }
        Ok(bytes)
    }

    /// Prevents both sides from sending. Messages that were sent before can still be received.
    pub fn cut(&self) {
        // The call fails if the peer has closed the connection.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn pair() -> (Channel, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Channel::new(here), there)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_message_comes_with_all_its_descriptors() {
        let (mut here, there) = pair();
        let files: Vec<OwnedFd> =
            (0..300).map(|n| eventfd(n, EventfdFlags::CLOEXEC).unwrap()).collect();
        let sender = std::thread::spawn(move || {
            here.send(&"state", b"bytes", &files, soon()).unwrap();
            here.send(&7, b"", &[], soon()).unwrap();
        });
        let mut there = Channel::new(there);
        let Received { message, bytes, files } = there.receive::<String>(soon()).unwrap();
        assert_eq!((message.as_str(), &bytes[..], files.len()), ("state", &b"bytes"[..], 300));
        for (n, file) in files.iter().enumerate().skip(1) {
            let mut count = [0; 8];
            rustix::io::read(file, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), n as u64);
        }
        assert_eq!(there.receive::<u32>(soon()).unwrap().message, 7);
        sender.join().unwrap();
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let header = |numbers: [u32; 3]| numbers.map(u32::to_le_bytes).as_flattened().to_vec();
        for bytes in [
            header([u32::MAX, 0, 0]),
            header([0, u32::MAX, 0]),
            header([0, 0, u32::MAX]),
            // A descriptor is announced, and does not come.
            [header([2, 0, 1]), b"0{}".to_vec()].concat(),
            [header([2, 0, 0]), b"{}".to_vec()].concat(),
            header([10, 0, 0]),
        ] {
            let (mut here, mut there) = pair();
            there.write_all(&bytes).unwrap();
            drop(there);
            assert!(here.receive::<u32>(soon()).is_err(), "{bytes:?}");
        }
        let (mut here, _there) = pair();
        let error = here.receive::<u32>(Instant::now() + Duration::from_millis(20)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    /// After it has cut the connection, the giver knows for certain whether the taker has taken the
    /// rings.
    #[test]
    fn nothing_is_sent_over_a_connection_that_was_cut() {
        for says in [false, true] {
            let (mut here, there) = pair();
            let mut there = Channel::new(there);
            if says {
                there.send(&7, b"", &[], soon()).unwrap();
            }
            here.cut();
            assert!(there.send(&8, b"", &[], soon()).is_err());
            let said = here.receive::<u32>(soon()).map(|received| received.message);
            assert_eq!(said.ok(), says.then_some(7));
        }
    }
}
