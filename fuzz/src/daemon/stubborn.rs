//! Sockets of peers that never wait for the daemon for long.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// How long the daemon may take to answer before the peer goes on.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Connects to a socket of the daemon. The fuzzer's alarm interrupts calls.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            connected => return connected,
        }
    }
}

/// Sends bytes and descriptors, or nothing when that is not possible at once.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is space for them");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

/// Waits until the daemon has sent something or closed the socket, for a moment at most.
pub fn wait(socket: impl AsFd) -> bool {
    let end = Instant::now() + LONGEST_WAIT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("a short time");
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return ready > 0,
            Err(_) if Instant::now() >= end => return false,
            Err(_) => {}
        }
    }
}

/// Reads and discards what the daemon has sent. False: it has closed the socket.
pub fn discard(socket: impl AsFd) -> bool {
    let mut bytes = [0; 4096];
    loop {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(&socket, &mut bytes, flags) {
            Ok((_, 0)) => return false,
            Ok(_) => {}
            Err(error) => return error == rustix::io::Errno::AGAIN,
        }
    }
}
