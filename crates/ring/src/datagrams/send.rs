//! Datagrams to one peer.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use super::Peer;
use crate::gather::Body;
use crate::region::Memory;

/// Sockets among which datagrams are spread, each with a source port of its own.
pub const LANES: usize = 16;
/// Datagrams of a batch.
pub const DATAGRAMS: usize = 256;
/// Bytes of a batch that are kept here and not with their sender: headers, and bodies from granted
/// pages.
const ARENA: usize = 192 * 1024;
/// Pieces of a batch.
const PIECES: usize = 2048;
/// Most pieces of one message (`UIO_MAXIOV`).
const MESSAGE_PIECES: usize = libc::UIO_MAXIOV as usize;
/// Most datagrams of one message (`UDP_MAX_SEGMENTS` of the oldest kernels that segment).
const SEGMENTS: usize = 64;
/// Most bytes of one message: an IPv4 packet.
const MESSAGE: u32 = 65_507;

/// A control message that carries the length of a segment, aligned as the kernel requires.
#[derive(Clone, Copy)]
#[repr(C)]
struct SegmentLen {
    header: libc::cmsghdr,
    len: u16,
    padding: [u8; 6],
}

struct Datagram {
    lane: u8,
    first: u32,
    pieces: u32,
    len: u32,
}

/// The outcome of sending a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// System calls.
    pub calls: u64,
    /// Datagrams for which the socket had no room.
    pub full: u64,
    /// Datagrams that exceed the path's MTU.
    pub too_long: u64,
    /// Datagrams that were refused otherwise: no route, or memory that is gone.
    pub refused: u64,
}

/// A message: datagrams of the same length, but for the last, which may be shorter.
#[derive(Clone, Copy)]
struct Message {
    datagrams: u32,
    bytes: u32,
}

/// Datagrams to one peer that are sent together.
pub struct SendBatch {
    peer: Peer,
    arena: Box<[u8]>,
    used: usize,
    pieces: Vec<libc::iovec>,
    datagrams: Vec<Datagram>,
    /// The memory that the pieces point into, besides the arena.
    pins: Vec<Arc<Memory>>,
    /// Whether all bytes are in the arena.
    owns_bytes: bool,
    /// Pieces in the order of messages.
    ordered: Vec<libc::iovec>,
    messages: Vec<Message>,
    headers: Vec<libc::mmsghdr>,
    controls: Box<[SegmentLen]>,
    /// Whether the kernel cuts messages into datagrams.
    segments: bool,
}

// SAFETY: the pieces point into the arena, which moves with the batch as a box, and into memory
// that the pins keep mapped for the whole process, and which is only read by the kernel.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// An empty batch, with all its room allocated.
    pub fn new(peer: Peer) -> SendBatch {
        let header = libc::cmsghdr {
            // The value of `CMSG_LEN`, which is not a constant function.
            cmsg_len: size_of::<libc::cmsghdr>() + size_of::<u16>(),
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        };
        let control = SegmentLen { header, len: 0, padding: [0; 6] };
        SendBatch {
            peer,
            arena: vec![0; ARENA].into_boxed_slice(),
            used: 0,
            pieces: Vec::with_capacity(PIECES),
            datagrams: Vec::with_capacity(DATAGRAMS),
            pins: Vec::with_capacity(16),
            owns_bytes: true,
            ordered: Vec::with_capacity(PIECES),
            messages: Vec::with_capacity(DATAGRAMS),
            headers: Vec::with_capacity(DATAGRAMS),
            controls: vec![control; DATAGRAMS].into_boxed_slice(),
            segments: true,
        }
    }

    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Whether all bytes of the datagrams are kept here, so that their senders may reuse the memory
    /// that the datagrams came from.
    pub fn owns_bytes(&self) -> bool {
        self.owns_bytes
    }

    /// Datagrams for each lane that has any, on average.
    pub fn per_lane(&self) -> usize {
        let lanes = self.lanes().count_ones() as usize;
        self.datagrams.len().checked_div(lanes).unwrap_or(0)
    }

    /// A bit for each lane that has datagrams.
    fn lanes(&self) -> u32 {
        self.datagrams.iter().fold(0, |lanes, it| lanes | 1 << it.lane)
    }

    /// Forgets what was not sent.
    pub fn clear(&mut self) {
        self.datagrams.clear();
        self.pieces.clear();
        self.pins.clear();
        (self.used, self.owns_bytes) = (0, true);
    }

    /// Adds a datagram of `header`, `head` and `body` for one of the [`LANES`]. False: the batch
    /// has no room for it. `None`: the datagram cannot be sent in any batch.
    pub fn push(&mut self, lane: u8, header: &[u8], head: &[u8], body: Body<'_>) -> Option<bool> {
        let granted = body.is_granted();
        let copied = header.len() + head.len() + if granted { body.len() as usize } else { 0 };
        let pieces = 1 + if granted { 0 } else { body.fragments() };
        let len = (header.len() + head.len()) as u32 + body.len();
        if pieces > MESSAGE_PIECES || len > MESSAGE {
            return None;
        }
        if self.datagrams.len() == DATAGRAMS
            || self.pieces.len() + pieces > PIECES
            || self.used + copied > ARENA
        {
            return Some(false);
        }
        let at = self.used;
        let room = self.arena.get_mut(at..at + copied)?;
        let (first, rest) = room.split_at_mut(header.len());
        first.copy_from_slice(header);
        let (second, rest) = rest.split_at_mut(head.len());
        second.copy_from_slice(head);
        if granted && body.read(rest) < rest.len() {
            return None;
        }
        let base = room.as_mut_ptr().cast();
        let mark = self.pieces.len();
        self.used += copied;
        self.pieces.push(libc::iovec { iov_base: base, iov_len: copied });
        if pieces > 1 {
            self.owns_bytes = false;
            for pin in body.pins() {
                if !self.pins.iter().any(|own| Arc::ptr_eq(own, pin)) {
                    self.pins.push(Arc::clone(pin));
                }
            }
            let list = &mut self.pieces;
            body.pieces(body.len(), |from, len| {
                list.push(libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len });
            });
        }
        let (first, pieces) = (mark as u32, (self.pieces.len() - mark) as u32);
        self.datagrams.push(Datagram { lane: lane % LANES as u8, first, pieces, len });
        Some(true)
    }

    /// Sends everything, each lane through its socket, by one system call per lane if the kernel
    /// takes all of it. The batch is empty afterwards; datagrams that the kernel did not take are
    /// counted.
    pub fn send(&mut self, sockets: &[OwnedFd; LANES]) -> Outcome {
        let mut outcome = Outcome::default();
        let lanes = self.lanes();
        for (lane, socket) in sockets.iter().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 1)
        {
            while !self.send_lane(lane as u8, socket, &mut outcome) {}
        }
        self.clear();
        outcome
    }

    /// Sends the datagrams of one lane. False: the kernel does not segment messages, and nothing
    /// was sent.
    fn send_lane(&mut self, lane: u8, socket: &OwnedFd, outcome: &mut Outcome) -> bool {
        self.arrange(lane);
        let mut next = 0;
        while next < self.headers.len() {
            let rest = &mut self.headers[next..];
            // SAFETY: each header names pieces, a control message and an address that this batch
            // owns or keeps mapped, and that stay where they are during the call; the kernel only
            // reads them.
            let sent = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            outcome.calls += 1;
            if let Ok(sent) = usize::try_from(sent) {
                for message in &self.messages[next..next + sent] {
                    outcome.sent += u64::from(message.datagrams);
                    outcome.bytes += u64::from(message.bytes);
                }
                next += sent;
                continue;
            }
            let error = io::Error::last_os_error();
            let message = self.messages[next];
            let lost = u64::from(message.datagrams);
            match error.raw_os_error() {
                // A signal came first. The watchdog's signals are for calls that block, which this
                // one never does, so try again.
                Some(libc::EINTR) => continue,
                // The device takes no unfinished checksums, or the kernel is older than the option.
                Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP)
                    if message.datagrams > 1 && self.segments =>
                {
                    self.segments = false;
                    if next == 0 {
                        return false;
                    }
                    outcome.refused += lost;
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => outcome.full += lost,
                Some(libc::EMSGSIZE) => outcome.too_long += lost,
                _ => outcome.refused += lost,
            }
            next += 1;
        }
        true
    }

    /// Arranges the datagrams of a lane as messages.
    fn arrange(&mut self, lane: u8) {
        self.ordered.clear();
        self.messages.clear();
        self.headers.clear();
        // The length of a message's first datagram, whether it may grow, and its first piece.
        let (mut segment, mut open, mut first) = (0, false, 0);
        for datagram in self.datagrams.iter().filter(|it| it.lane == lane) {
            let range = datagram.first as usize..(datagram.first + datagram.pieces) as usize;
            let pieces = &self.pieces[range];
            let grows = open
                && datagram.len <= segment
                && self.messages.last().is_some_and(|message| {
                    (message.datagrams as usize) < SEGMENTS
                        && message.bytes + datagram.len <= MESSAGE
                        && self.ordered.len() - first + pieces.len() <= MESSAGE_PIECES
                });
            if !grows {
                (segment, first) = (datagram.len, self.ordered.len());
                self.messages.push(Message { datagrams: 0, bytes: 0 });
            }
            self.ordered.extend_from_slice(pieces);
            if let Some(message) = self.messages.last_mut() {
                message.datagrams += 1;
                message.bytes += datagram.len;
                if let Some(control) = self.controls.get_mut(self.messages.len() - 1) {
                    control.len = segment as u16;
                }
            }
            // A shorter datagram must be the last of its message.
            open = self.segments && datagram.len == segment;
        }
        self.address();
    }

    /// Makes the headers of the messages. Nothing that they point to grows any more.
    fn address(&mut self) {
        let mut piece = 0;
        for (at, message) in self.messages.iter().enumerate() {
            let first = piece;
            let mut bytes = 0;
            while bytes < message.bytes as usize {
                bytes += self.ordered[piece].iov_len;
                piece += 1;
            }
            let cut = message.datagrams > 1;
            let control = &raw mut self.controls[at];
            // SAFETY: all bytes zero is a header without anything.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_name = (&raw mut self.peer.storage).cast();
            header.msg_namelen = self.peer.len;
            header.msg_iov = self.ordered[first..].as_mut_ptr();
            header.msg_iovlen = (piece - first) as _;
            header.msg_control = if cut { control.cast() } else { ptr::null_mut() };
            header.msg_controllen = if cut { size_of::<SegmentLen>() as _ } else { 0 };
            self.headers.push(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
        }
    }
}
