//! Bytes from a front-end: headers, requests, and messages cut out of a stream.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use vhost_user::transport::connection::{Connection, Incoming};
use vhost_user::transport::message::{HEADER_LEN, Header, MAX_FDS, MAX_PAYLOAD, Request};

use crate::input::Input;

/// Reads `data` as one message, and as a stream of them.
pub fn run(data: &[u8]) {
    one(data);
    stream(data);
}

fn one(data: &[u8]) {
    let mut input = Input::new(data);
    let fds = usize::from(input.u8() % 12);
    let Some(bytes) = input.take(HEADER_LEN).first_chunk() else { return };
    let Ok(header) = Header::parse(bytes) else { return };
    assert!(header.size <= MAX_PAYLOAD);
    if let Ok(request) = Request::parse(&header, input.take(header.size), fds) {
        assert!(request.fds() <= fds);
    }
}

fn stream(data: &[u8]) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (theirs, ours) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket pair");
    let mut connection = Connection::new(ours);
    let mut input = Input::new(data);
    while !input.is_empty() {
        let (len, fds) = (1 + usize::from(input.u8()), input.u8());
        // Descriptors come seldom, and then in any number.
        let fds = if fds < 200 { 0 } else { usize::from(fds - 200) / 2 };
        if !send(&theirs, input.take(len), fds) || !read(&mut connection) {
            return;
        }
    }
    drop(theirs);
    read(&mut connection);
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: usize) -> bool {
    let fds = vec![socket.as_fd(); fds];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
}

/// Reads all that is there; false when the connection is over.
fn read(connection: &mut Connection) -> bool {
    loop {
        match connection.read() {
            Ok(Incoming::Message(message)) => {
                assert_eq!(message.payload.len(), message.header.size);
                assert!(message.fds.len() <= MAX_FDS);
                let _ = Request::parse(&message.header, &message.payload, message.fds.len());
            }
            Ok(Incoming::Nothing) => return true,
            Ok(Incoming::End) | Err(_) => return false,
        }
    }
}
