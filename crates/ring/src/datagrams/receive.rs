//! Datagrams from anybody.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use super::Peer;
use crate::region::{MapError, Memory};

/// Room for control messages. Only that of `UDP_GRO` is requested.
const CONTROL: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// The contents of a filled buffer: a datagram, or several of one sender that the kernel has
/// coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The buffer's number.
    pub buffer: u16,
    /// The sender; `None`: it has no IP address.
    pub source: Option<IpAddr>,
    /// Bytes in all.
    pub len: u32,
    /// Bytes of each datagram but the last, which may be shorter: at least 1.
    pub segment: u32,
    /// The kernel had more bytes than the buffer has room for, and the rest is lost.
    pub truncated: bool,
}

/// Buffers, and the headers to fill many of them by one system call.
pub struct ReceiveBatch {
    memory: Arc<Memory>,
    buffer: u32,
    pieces: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Control]>,
    headers: Box<[libc::mmsghdr]>,
}

// SAFETY: the headers point into boxes of the same batch, and the pieces into its memory, which is
// mapped for the whole process; both move with it.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// `count` buffers of `buffer` bytes each, in a memory of their own; buffer `i` is at
    /// `i * buffer`.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn new(count: u16, buffer: u32) -> Result<ReceiveBatch, MapError> {
        let many = usize::from(count);
        let memory = Arc::new(Memory::anonymous(many * buffer as usize)?);
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: all bytes zero is a header without anything.
        let header = || unsafe { std::mem::zeroed::<libc::mmsghdr>() };
        Ok(ReceiveBatch {
            memory,
            buffer,
            pieces: vec![none; many].into_boxed_slice(),
            names: vec![Peer::EMPTY; many].into_boxed_slice(),
            controls: vec![Control([0; CONTROL]); many].into_boxed_slice(),
            headers: (0..many).map(|_| header()).collect(),
        })
    }

    /// The memory that the buffers are in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where a buffer begins in it.
    pub fn place(&self, buffer: u16) -> u64 {
        u64::from(buffer) * u64::from(self.buffer)
    }

    /// Fills buffers of `free`, the last ones first, from `socket`, by one system call. The filled
    /// buffers are removed from `free`, and `each` is called for them in order of arrival. Returns
    /// how many.
    ///
    /// # Errors
    /// The error of `recvmmsg(2)`, `WouldBlock` where there is nothing.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        free: &mut Vec<u16>,
        mut each: impl FnMut(Received),
    ) -> io::Result<usize> {
        let many = free.len().min(self.headers.len());
        for (at, &buffer) in free.iter().rev().take(many).enumerate() {
            let room = self.memory.run(self.place(buffer), &mut 0);
            let (to, _) =
                room.filter(|(_, left)| *left >= u64::from(self.buffer)).ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidInput, "there is no such buffer")
                })?;
            self.pieces[at] =
                libc::iovec { iov_base: to.as_ptr().cast(), iov_len: self.buffer as usize };
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_iov = &raw mut self.pieces[at];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
        // SAFETY: the first `many` headers name buffers of the memory, of which no two are the same
        // unless the caller gave one twice, and room of this batch; all of it stays where it is.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                many as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        for at in 0..got.min(many) {
            let Some(buffer) = free.pop() else { break };
            each(self.received(at, buffer));
        }
        Ok(got)
    }

    fn received(&self, at: usize, buffer: u16) -> Received {
        let header = &self.headers[at];
        let len = header.msg_len.min(self.buffer);
        let named = header.msg_hdr.msg_namelen > 0;
        Received {
            buffer,
            source: Peer::ip(&self.names[at]).filter(|_| named),
            len,
            segment: segment(&header.msg_hdr).unwrap_or(len).clamp(1, len.max(1)),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

/// The length of the datagrams that the kernel has coalesced; `None`: there is only one.
fn segment(header: &libc::msghdr) -> Option<u32> {
    // SAFETY: the kernel has written the control messages, and their length into the header.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: not null, so a whole header is there; the kernel aligns control messages.
        let found = unsafe { &*message };
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
            // SAFETY: the kernel writes an `int` for this option.
            let len = unsafe { libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned() };
            return u32::try_from(len).ok().filter(|len| *len > 0);
        }
        // SAFETY: the message is one of this header.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    None
}
