use std::io::{IoSlice, Write};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

use super::*;
use crate::transport::message::Reply;

fn pair() -> (UnixStream, Connection) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (theirs, Connection::new(ours.into()))
}

fn bytes(code: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [code, 1, payload.len() as u32].iter().flat_map(|field| field.to_le_bytes()).collect();
    bytes.extend_from_slice(payload);
    bytes
}

fn send_with(stream: &UnixStream, bytes: &[u8], count: usize) {
    let files: Vec<_> = (0..count).map(|_| tempfile::tempfile().unwrap()).collect();
    let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

fn message(connection: &mut Connection) -> Message {
    match connection.read().unwrap() {
        Incoming::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_may_come_in_pieces() {
    let (mut peer, mut connection) = pair();
    for byte in bytes(2, &[7; 8]) {
        assert!(matches!(connection.read().unwrap(), Incoming::Nothing));
        peer.write_all(&[byte]).unwrap();
    }
    let message = message(&mut connection);
    assert_eq!((message.header.code, message.payload.as_slice()), (2, &[7; 8][..]));
    assert!(matches!(connection.read().unwrap(), Incoming::Nothing));
}

#[test]
fn descriptors_stay_with_their_message() {
    let (mut peer, mut connection) = pair();
    send_with(&peer, &bytes(12, &[0; 8]), 1);
    peer.write_all(&bytes(3, &[])).unwrap();
    send_with(&peer, &bytes(5, &[0; 8]), MAX_FDS);
    let counts = [(); 3].map(|()| message(&mut connection).fds.len());
    assert_eq!(counts, [1, 0, MAX_FDS]);
}

#[test]
fn surplus_descriptors_are_an_error() {
    let (peer, mut connection) = pair();
    send_with(&peer, &bytes(5, &[0; 8]), MAX_FDS + 1);
    let error = connection.read().unwrap_err();
    assert!(
        matches!(error, ConnectionError::Message(BadMessage::TooManyDescriptors { .. })),
        "{error}"
    );
}

#[test]
fn descriptors_in_instalments_are_counted_together() {
    let (peer, mut connection) = pair();
    let bytes = bytes(5, &[0; 8]);
    send_with(&peer, &bytes[..12], MAX_FDS);
    send_with(&peer, &bytes[12..16], 1);
    let error = connection.read().unwrap_err();
    assert_eq!(error.to_string(), "SET_MEM_TABLE with more than 8 file descriptors");
}

#[test]
fn an_end_within_a_message_is_an_error() {
    let (mut peer, mut connection) = pair();
    peer.write_all(&bytes(3, &[])).unwrap();
    peer.write_all(&bytes(2, &[0; 8])[..15]).unwrap();
    drop(peer);
    message(&mut connection);
    assert!(matches!(connection.read(), Err(ConnectionError::Truncated)));
}

#[test]
fn an_end_between_messages_is_none() {
    let (peer, mut connection) = pair();
    drop(peer);
    assert!(matches!(connection.read().unwrap(), Incoming::End));
}

#[test]
fn replies_that_are_not_taken_are_kept() {
    let (peer, mut connection) = pair();
    let reply = Reply::Number(5).encode(1);
    let mut sent = 0;
    while !connection.is_clogged() {
        connection.send(&reply).unwrap();
        sent += reply.len();
    }
    peer.set_nonblocking(true).unwrap();
    let (mut got, mut buffer) = (0, [0; 4096]);
    while connection.is_clogged() || got < sent {
        got += std::io::Read::read(&mut &peer, &mut buffer).unwrap();
        connection.drain().unwrap();
    }
    assert_eq!(got, sent);
}

#[test]
fn a_file_goes_out_once_with_the_first_bytes() {
    let (peer, mut connection) = pair();
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    connection.send_with_file(&bytes(31, &[0; 24]), file).unwrap();
    connection.send(&bytes(1, &[0; 8])).unwrap();
    let mut other = Connection::new(peer.into());
    let counts = [(); 2].map(|()| message(&mut other).fds.len());
    assert_eq!(counts, [1, 0]);
}
