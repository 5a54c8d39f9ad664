//! The protocol between a guest that is a process of its own and its hypervisor: messages over a
//! `SOCK_SEQPACKET` socket. Each is an array of 32-bit numbers in the machine's byte order. Some
//! carry descriptors.
//!
//! The guest sends one request at a time and gets one answer to each. The store has a socket of its
//! own.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::layout::Version;
use crate::DomId;

/// The version of this protocol. Both ends must be of the same release: no other version is
/// understood.
const PROTOCOL: u32 = 0x524d_0002;

/// Most bytes of a message.
const LONGEST: usize = 256;

/// Most descriptors of a message.
const DESCRIPTORS: usize = 2;

/// Longest name of a guest, in bytes.
pub const NAME: usize = 32;

/// The first message of a guest. The file with the guest's memory comes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Pages of its own.
    pub pages: u32,
    /// The version of the guest's grant entries.
    pub version: Version,
    /// The address of its interface.
    pub mac: [u8; 6],
    /// The guest's name: letters, digits, `_`, `.` and `-`.
    pub name: String,
}

/// A request of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Create a domain.
    Hello(Hello),
    /// Grow the grant table to so many pages.
    Grow(u32),
    /// Open an event channel that this domain can bind.
    Open(DomId),
    /// Add a virtual CPU that can make grant copies.
    Vcpu,
    /// Close a channel, and remove the virtual CPU that it belongs to.
    Close(u32),
}

/// An answer to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The guest is this domain, with a grant table of this version. The socket to the store comes
    /// with the message.
    Welcome(DomId, Version),
    /// The request was carried out.
    Done,
    /// A channel was opened. Both of its eventfds come with the message, the guest's own first.
    Opened {
        /// The number that the other end binds.
        number: u32,
        /// The number of its words.
        slot: u32,
    },
    /// A virtual CPU was added. Both eventfds of its channel come with the message, the guest's own
    /// first.
    Calling {
        /// The number of the channel to close.
        number: u32,
        /// The number of its channel's words.
        slot: u32,
        /// The number of its call page.
        page: u32,
    },
    /// The request was refused, for this reason.
    Refused(String),
}

mod kind {
    pub const HELLO: u32 = 1;
    pub const GROW: u32 = 2;
    pub const OPEN: u32 = 3;
    pub const CLOSE: u32 = 4;
    pub const VCPU: u32 = 5;
    pub const WELCOME: u32 = 101;
    pub const DONE: u32 = 102;
    pub const OPENED: u32 = 103;
    pub const REFUSED: u32 = 104;
    pub const CALLING: u32 = 105;
}

/// Whether this can be the name of a guest.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=NAME).contains(&name.len()) && name.bytes().all(plain)
}

fn words(words: &[u32], text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let room = LONGEST - bytes.len();
    let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    bytes.extend_from_slice(text.get(..end).unwrap_or_default().as_bytes());
    bytes
}

/// The first words of a message, and what is behind them.
fn split<const N: usize>(bytes: &[u8]) -> Option<([u32; N], &[u8])> {
    let (head, text) = bytes.split_at_checked(4 * N)?;
    let mut words = [0; N];
    for (to, from) in words.iter_mut().zip(head.as_chunks::<4>().0) {
        *to = u32::from_ne_bytes(*from);
    }
    Some((words, text))
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

impl Request {
    /// The bytes of the request on the socket.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Request::Hello(Hello { pages, version, mac: [a, b, c, d, e, f], name }) => {
                let mac =
                    [u32::from_ne_bytes([*a, *b, *c, *d]), u32::from_ne_bytes([*e, *f, 0, 0])];
                words(&[kind::HELLO, PROTOCOL, *pages, version.number(), mac[0], mac[1]], name)
            }
            Request::Grow(frames) => words(&[kind::GROW, *frames], ""),
            Request::Open(domain) => words(&[kind::OPEN, domain.0.into()], ""),
            Request::Vcpu => words(&[kind::VCPU, 0], ""),
            Request::Close(number) => words(&[kind::CLOSE, *number], ""),
        }
    }

    /// The request that was sent. `None`: the bytes are no known request.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let ([kind, first], rest) = split::<2>(bytes)?;
        match kind {
            kind::HELLO if first == PROTOCOL => {
                let ([_, _, pages, version, start, end], name) = split::<6>(bytes)?;
                let ([a, b, c, d], [e, f, _, _]) = (start.to_ne_bytes(), end.to_ne_bytes());
                let (version, name) = (Version::of(version)?, text(name)?);
                is_name(&name).then_some(Request::Hello(Hello {
                    pages,
                    version,
                    mac: [a, b, c, d, e, f],
                    name,
                }))
            }
            _ if !rest.is_empty() => None,
            kind::GROW => Some(Request::Grow(first)),
            kind::OPEN => Some(Request::Open(DomId(first.try_into().ok()?))),
            kind::VCPU => Some(Request::Vcpu),
            kind::CLOSE => Some(Request::Close(first)),
            _ => None,
        }
    }
}

impl Reply {
    /// The bytes of the reply on the socket.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Welcome(domain, version) => {
                words(&[kind::WELCOME, domain.0.into(), version.number()], "")
            }
            Reply::Done => words(&[kind::DONE, 0, 0], ""),
            Reply::Opened { number, slot } => words(&[kind::OPENED, *number, *slot], ""),
            Reply::Calling { number, slot, page } => {
                words(&[kind::CALLING, *number, *slot, *page], "")
            }
            Reply::Refused(why) => words(&[kind::REFUSED, 0, 0], why),
        }
    }

    /// The reply that was sent. `None`: the bytes are no known reply.
    pub fn decode(bytes: &[u8]) -> Option<Reply> {
        let ([kind, number, slot], why) = split::<3>(bytes)?;
        match kind {
            kind::WELCOME => {
                Some(Reply::Welcome(DomId(number.try_into().ok()?), Version::of(slot)?))
            }
            kind::DONE => Some(Reply::Done),
            kind::OPENED => Some(Reply::Opened { number, slot }),
            kind::CALLING => {
                let ([_, _, _, page], _) = split::<4>(bytes)?;
                Some(Reply::Calling { number, slot, page })
            }
            kind::REFUSED => Some(Reply::Refused(text(why)?)),
            _ => None,
        }
    }
}

/// Sends a message.
///
/// # Errors
/// When the kernel refuses. A message that would block is an error, too, because each side waits
/// for an answer before it sends the next message.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message. `None`: the other end is gone.
///
/// # Errors
/// The kernel's error, and when a message is longer than any.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = [0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message longer than any"));
    }
    // An empty message means that the other end is gone.
    Ok((got.bytes > 0).then(|| (bytes.get(..got.bytes).unwrap_or_default().to_vec(), fds)))
}

/// The two ends of a socket for messages.
///
/// # Errors
/// When the kernel has no descriptor left.
#[cfg(test)]
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let hello = Hello {
            pages: 7,
            version: Version::V2,
            mac: [2, 1, 0xff, 0, 0x99, 9],
            name: "guest-1".into(),
        };
        for request in [
            Request::Hello(hello),
            Request::Grow(3),
            Request::Open(DomId(0)),
            Request::Vcpu,
            Request::Close(9),
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let opened = Reply::Opened { number: 5, slot: 6 };
        let (welcome, calling) =
            (Reply::Welcome(DomId(4), Version::V2), Reply::Calling { number: 7, slot: 8, page: 9 });
        for reply in [welcome, Reply::Done, opened, calling, Reply::Refused("no".into())] {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        let long = Reply::Refused("ä".repeat(500));
        assert!(long.encode().len() <= LONGEST && Reply::decode(&long.encode()).is_some());
    }

    #[test]
    fn names_are_plain() {
        assert!(is_name("a") && is_name("Guest_1.x-y") && is_name(&"x".repeat(32)));
        assert!(
            !is_name("")
                && !is_name("a/b")
                && !is_name("a b")
                && !is_name(&"x".repeat(33))
                && !is_name("ä")
        );
    }

    #[test]
    fn descriptors_come_along() {
        let (ours, theirs) = pair().unwrap();
        send(ours.as_fd(), b"hello", &[ours.as_fd(), theirs.as_fd()]).unwrap();
        let (bytes, fds) = receive(theirs.as_fd()).unwrap().unwrap();
        assert_eq!((&*bytes, fds.len()), (&b"hello"[..], 2));
        send(ours.as_fd(), &[0; LONGEST + 1], &[]).unwrap();
        assert!(receive(theirs.as_fd()).is_err());
        drop((ours, fds));
        assert!(receive(theirs.as_fd()).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn nonsense_is_not_understood(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u32..7) {
            let _ = Reply::decode(&bytes);
            let _ = Request::decode(&bytes);
            let bytes = [&kind.to_ne_bytes()[..], &bytes].concat();
            if let Some(request) = Request::decode(&bytes) {
                prop_assert_eq!(Request::decode(&request.encode()), Some(request));
            }
        }
    }
}
