//! A hostile guest and its front-end: bare messages on a bare socket, bare bytes in a file of
//! memory.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost_user::net::feature::{all_offered, bit};
use vhost_user::transport::feature::protocol;

/// Size of the guest's memory.
pub const MEMORY: u64 = 8 << 20;
/// Where the second region begins: buffers are in it.
pub const SECOND: u64 = 4 << 20;
/// Guest address of guest memory's first byte, and where the front-end says that it has it mapped.
pub const GUEST: u64 = 0x1_0000_0000;
pub const USER: u64 = 0x7000_0000_0000;
/// Entries of each ring.
pub const SIZE: u16 = 64;

/// Where, in the memory, the parts of ring `index` are.
pub fn desc(index: u64) -> u64 {
    0x1_0000 * (index + 1)
}
pub fn driver(index: u64) -> u64 {
    desc(index) + 0x4000
}
pub fn device(index: u64) -> u64 {
    desc(index) + 0x8000
}
/// Where tables of descriptors may be put.
pub const TABLE: u64 = 0x10_0000;
/// Where buffers are.
pub const BUFFER: u64 = SECOND + 0x1000;

/// Numbers of requests.
#[allow(dead_code, reason = "the whole list is what attacks are made of")]
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const NET_SET_MTU: u32 = 20;
    pub const RESET_DEVICE: u32 = 34;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// The features that a hostile guest negotiates.
#[derive(Clone, Copy)]
pub struct Kind {
    pub packed: bool,
    pub indirect: bool,
    pub acknowledge: bool,
}

impl Kind {
    pub const SPLIT: Kind = Kind { packed: false, indirect: false, acknowledge: false };
    pub const PACKED: Kind = Kind { packed: true, ..Kind::SPLIT };
    pub const INDIRECT: Kind = Kind { indirect: true, ..Kind::SPLIT };
    pub const PACKED_INDIRECT: Kind = Kind { indirect: true, ..Kind::PACKED };
    pub const POLITE: Kind = Kind { acknowledge: true, ..Kind::SPLIT };

    pub fn features(self) -> u64 {
        let optional = [(self.packed, bit::RING_PACKED), (self.indirect, bit::INDIRECT_DESC)];
        let chosen =
            optional.iter().filter(|(wanted, _)| *wanted).fold(0, |all, (_, bit)| all | bit);
        bit::VERSION_1 | bit::PROTOCOL_FEATURES | bit::MRG_RXBUF | chosen
    }
}

/// A front-end that is connected, its rings running, and that will do something bad.
pub struct HostileFrontEnd {
    pub stream: UnixStream,
    pub kind: Kind,
    /// Holds the first region, with the rings.
    pub rings: OwnedFd,
    /// Holds the second, with the buffers.
    pub buffers: OwnedFd,
    /// By ring: Rx, Tx.
    pub kicks: [OwnedFd; 2],
    pub calls: [OwnedFd; 2],
}

/// A file of memory.
pub fn memory(len: u64) -> OwnedFd {
    let fd = memfd_create(c"hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

/// `struct vhost_memory_region`.
pub fn region(guest: u64, len: u64, user: u64, offset: u64) -> Vec<u8> {
    longs(&[guest, len, user, offset])
}

impl HostileFrontEnd {
    /// Connects, without having said anything.
    pub fn connect(path: &Path, kind: Kind) -> HostileFrontEnd {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(crate::WATCHDOG)).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        HostileFrontEnd {
            stream,
            kind,
            rings: memory(SECOND),
            buffers: memory(MEMORY - SECOND),
            kicks: [event(), event()],
            calls: [event(), event()],
        }
    }

    /// Does all that a good front-end does to start a queue pair; Rx has one buffer a descriptor.
    pub fn start(&mut self) {
        self.say(code::SET_OWNER, &[], &[]);
        let ack = if self.kind.acknowledge { protocol::REPLY_ACK } else { 0 };
        self.say(code::SET_FEATURES, &longs(&[self.kind.features()]), &[]);
        self.say(
            code::SET_PROTOCOL_FEATURES,
            &longs(&[protocol::CONFIGURE_MEM_SLOTS | protocol::MQ | ack]),
            &[],
        );
        self.share();
        for index in 0..2 {
            self.describe(index);
            self.wire(index);
        }
        self.post_all();
        self.wait_until_idle();
    }

    /// Shows the memory.
    pub fn share(&self) {
        let table = [
            words(&[2, 0]),
            region(GUEST, SECOND, USER, 0),
            region(GUEST + SECOND, MEMORY - SECOND, USER + SECOND, 0),
        ];
        self.say(code::SET_MEM_TABLE, &table.concat(), &[self.rings.as_fd(), self.buffers.as_fd()]);
    }

    /// Says where ring `index` is.
    pub fn describe(&self, index: u32) {
        self.say(code::SET_VRING_NUM, &words(&[index, SIZE.into()]), &[]);
        self.place(index, desc(index.into()), driver(index.into()), device(index.into()));
    }

    /// Says where the parts of ring `index` are.
    pub fn place(&self, index: u32, desc: u64, driver: u64, device: u64) {
        let user = |at: u64| USER.wrapping_add(at);
        let places = longs(&[user(desc), user(device), user(driver), 0]);
        self.say(code::SET_VRING_ADDR, &[words(&[index, 0]), places].concat(), &[]);
    }

    /// Starts ring `index`.
    pub fn wire(&self, index: u32) {
        let ring = longs(&[index.into()]);
        self.say(code::SET_VRING_CALL, &ring, &[self.calls[index as usize].as_fd()]);
        self.say(code::SET_VRING_KICK, &ring, &[self.kicks[index as usize].as_fd()]);
        self.say(code::SET_VRING_ENABLE, &words(&[index, 1]), &[]);
    }

    /// Posts a buffer with every descriptor of the Rx ring.
    fn post_all(&self) {
        for i in 0..SIZE {
            self.describe_buffer(0, i, BUFFER + 2048 * u64::from(i), 2048, 2);
        }
        self.publish(0, SIZE);
    }

    /// Sends one message. That the socket is closed already is no surprise.
    pub fn say(&self, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        let header = words(&[code, 1, body.len() as u32]);
        self.send(&[header, body.to_vec()].concat(), fds);
    }

    /// Sends bytes and descriptors, whatever they are.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let _ = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// Sends a message that asks for an acknowledgement, and says what it was.
    pub fn ask(&self, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Option<u64> {
        self.send(&[words(&[code, 9, body.len() as u32]), body.to_vec()].concat(), fds);
        self.reply()
    }

    fn reply(&self) -> Option<u64> {
        let mut bytes = [0; 20];
        (&self.stream).read_exact(&mut bytes).ok()?;
        Some(bytes[12..].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Waits until everything said so far has been dealt with.
    pub fn wait_until_idle(&self) {
        self.say(code::GET_FEATURES, &[], &[]);
        assert_eq!(self.reply(), Some(all_offered().0));
    }

    /// Whether the other side has closed the connection.
    pub fn is_hung_up(&self) -> bool {
        (&self.stream).write_all(&[]).is_err() || {
            let mut byte = [0; 1];
            let flags = rustix::net::RecvFlags::DONTWAIT;
            !matches!(
                rustix::net::recv(&self.stream, &mut byte, flags),
                Ok((1.., _)) | Err(rustix::io::Errno::AGAIN)
            )
        }
    }

    /// Writes to the memory. The file may have been cut short.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let (file, at) = if at < SECOND { (&self.rings, at) } else { (&self.buffers, at - SECOND) };
        let _ = rustix::io::pwrite(file, bytes, at);
    }

    /// Kicks ring `index`.
    pub fn kick(&self, index: usize) {
        let _ = rustix::io::write(&self.kicks[index], &1u64.to_ne_bytes());
    }

    /// Writes descriptor `at` of ring `ring`: split with the link to the next one, packed with
    /// buffer id `at` and flags that make it available in the first pass.
    pub fn describe_buffer(&self, ring: u64, at: u16, addr: u64, len: u32, flags: u16) {
        self.describe_any(ring, at, GUEST.wrapping_add(addr), len, flags, at + 1);
    }

    /// The same, with a guest address and a link of one's own.
    pub fn describe_any(&self, ring: u64, at: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let bytes = match self.kind.packed {
            true => packed(addr, len, next, flags | 0x80),
            false => split(addr, len, flags, next),
        };
        self.write(desc(ring) + 16 * u64::from(at), &bytes);
    }

    /// Split: makes heads 0, 1, 2 ... available, `count` in all. Packed: descriptors are available
    /// by what they say.
    pub fn publish(&self, ring: u64, count: u16) {
        if !self.kind.packed {
            let heads: Vec<u8> = (0..count.min(SIZE)).flat_map(u16::to_le_bytes).collect();
            self.write(driver(ring) + 4, &heads);
            self.write(driver(ring) + 2, &count.to_le_bytes());
        }
        self.kick(ring as usize);
    }
}

/// A split descriptor.
pub fn split(addr: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
        .concat()
}

/// A packed descriptor.
pub fn packed(addr: u64, len: u32, id: u16, flags: u16) -> Vec<u8> {
    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes()].concat()
}
