//! One connected socket: messages out of its bytes, replies into it.
//!
//! Nothing here blocks. A front-end that sends half a message, or does not read its replies, delays
//! only its own connection, whose thread can be told to stop. Descriptors belong to the message
//! whose bytes they came with, since no more bytes are read at a time than the present message
//! still lacks.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg, sockopt,
};
use thiserror::Error;

use super::message::{BadMessage, HEADER_LEN, Header, MAX_FDS, MAX_PAYLOAD};
use super::saved::{Files, HandOverError, SavedConnection, SavedSession};

/// Why a connection cannot be read or written any more.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// An invalid header, or too many descriptors. The start of the next message is unknown then.
    #[error(transparent)]
    Message(#[from] BadMessage),
    /// The front-end closed the connection within a message.
    #[error("the connection ended in the middle of a message")]
    Truncated,
    /// The socket failed.
    #[error("socket: {0}")]
    Socket(io::Error),
}

impl From<Errno> for ConnectionError {
    fn from(errno: Errno) -> Self {
        ConnectionError::Socket(errno.into())
    }
}

/// A message that came whole.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// Its payload, as long as the header says.
    pub payload: Vec<u8>,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// The outcome of a read.
#[derive(Debug)]
pub enum Incoming {
    /// A whole message.
    Message(Message),
    /// Not enough yet.
    Nothing,
    /// The front-end has closed the connection.
    End,
}

/// A connected socket, and the message that is on its way in.
pub struct Connection {
    socket: OwnedFd,
    bytes: Box<[u8; HEADER_LEN + MAX_PAYLOAD]>,
    have: usize,
    fds: Vec<OwnedFd>,
    outgoing: Vec<u8>,
    /// Sent beside the first of these bytes.
    outgoing_file: Option<OwnedFd>,
}

impl Connection {
    /// A connection on a socket that does not block.
    pub fn new(socket: OwnedFd) -> Self {
        Connection {
            socket,
            bytes: Box::new([0; HEADER_LEN + MAX_PAYLOAD]),
            have: 0,
            fds: Vec::new(),
            outgoing: Vec::new(),
            outgoing_file: None,
        }
    }

    /// The connection, for another process. `session` is the state that its front-end has set.
    pub(super) fn save(
        &self,
        files: &mut Files,
        session: SavedSession,
    ) -> io::Result<SavedConnection> {
        let incoming_files = self.fds.iter().map(|fd| files.add(fd)).collect::<io::Result<_>>()?;
        let outgoing_file = self.outgoing_file.as_ref().map(|file| files.add(file)).transpose()?;
        Ok(SavedConnection {
            socket: files.add(&self.socket)?,
            incoming: self.bytes.get(..self.have).unwrap_or_default().to_vec(),
            incoming_files,
            outgoing: self.outgoing.clone(),
            outgoing_file,
            session,
        })
    }

    /// A connection that another process had.
    pub(super) fn restore(
        saved: &SavedConnection,
        files: &mut Files,
    ) -> Result<Connection, HandOverError> {
        let mut connection = Connection::new(files.take(saved.socket)?);
        let have = saved.incoming.len();
        let room =
            connection.bytes.get_mut(..have).filter(|_| saved.incoming_files.len() <= MAX_FDS);
        let room =
            room.ok_or_else(|| HandOverError::Unusable("the message at hand is too long".into()))?;
        room.copy_from_slice(&saved.incoming);
        connection.have = have;
        for number in &saved.incoming_files {
            connection.fds.push(files.take(*number)?);
        }
        connection.outgoing.clone_from(&saved.outgoing);
        connection.outgoing_file =
            saved.outgoing_file.map(|number| files.take(number)).transpose()?;
        Ok(connection)
    }

    /// Process id of the front-end when it connected, as the kernel knows it.
    pub fn peer(&self) -> Option<i32> {
        sockopt::socket_peercred(&self.socket).ok().map(|cred| cred.pid.as_raw_nonzero().get())
    }

    /// Reads the available bytes, up to the end of one message.
    ///
    /// # Errors
    /// When the bytes make no sense, or the socket fails.
    pub fn read(&mut self) -> Result<Incoming, ConnectionError> {
        loop {
            let header = self.header()?;
            let need = HEADER_LEN + header.map_or(0, |header| header.size);
            if let (true, Some(header)) = (self.have == need, header) {
                return Ok(Incoming::Message(self.finish(header)));
            }
            match self.receive(need) {
                Ok(0) if self.have == 0 => return Ok(Incoming::End),
                Ok(0) => return Err(ConnectionError::Truncated),
                Ok(count) => self.have += count,
                Err(Errno::AGAIN) => return Ok(Incoming::Nothing),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(Incoming::End),
                Err(Errno::TOOBIG) => return Err(self.too_many()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The header, once it is there.
    fn header(&self) -> Result<Option<Header>, BadMessage> {
        match self.bytes.first_chunk() {
            Some(bytes) if self.have >= HEADER_LEN => Header::parse(bytes).map(Some),
            _ => Ok(None),
        }
    }

    fn finish(&mut self, header: Header) -> Message {
        let payload = self.bytes.get(HEADER_LEN..self.have).unwrap_or_default().to_vec();
        self.have = 0;
        Message { header, payload, fds: std::mem::take(&mut self.fds) }
    }

    fn too_many(&self) -> ConnectionError {
        let name = self.header().ok().flatten().map_or("a message", |header| header.name());
        BadMessage::TooManyDescriptors { name }.into()
    }

    /// Receives towards `need` bytes of the message at hand. `TOOBIG`: more descriptors than a
    /// message may have; those that did not fit are closed by the kernel, the others with the
    /// connection.
    fn receive(&mut self, need: usize) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = self.bytes.get_mut(self.have..need).unwrap_or_default();
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = recvmsg(&self.socket, &mut [IoSliceMut::new(room)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        match self.fds.len() > MAX_FDS || got.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(Errno::TOOBIG),
            false => Ok(got.bytes),
        }
    }

    /// Sends `bytes`, or keeps those that the socket does not take yet.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.outgoing.extend_from_slice(bytes);
        self.drain()
    }

    /// The same with `file` beside the bytes, while nothing waits to be taken.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn send_with_file(&mut self, bytes: &[u8], file: OwnedFd) -> Result<(), ConnectionError> {
        debug_assert!(!self.is_clogged());
        self.outgoing_file = Some(file);
        self.send(bytes)
    }

    /// Sends what was kept.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain(&mut self) -> Result<(), ConnectionError> {
        while !self.outgoing.is_empty() {
            match self.send_some() {
                Ok(count) => {
                    self.outgoing_file = None;
                    self.outgoing.drain(..count);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Sends as many bytes as fit, the first time with the file. Returns their number.
    fn send_some(&self) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let Some(file) = &self.outgoing_file else {
            return send(&self.socket, &self.outgoing, flags);
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&self.socket, &[IoSlice::new(&self.outgoing)], &mut control, flags)
    }

    /// Whether replies wait to be sent. No message is read then, so that replies cannot pile up.
    pub fn is_clogged(&self) -> bool {
        !self.outgoing.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
