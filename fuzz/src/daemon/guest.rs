//! A hostile process as a guest: bare messages to its hypervisor and its store, and bare bytes in
//! its memory.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hypervisor::PAGE;
use ring::Memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, socket_with,
};

use super::store_client::StoreClient;
use super::stubborn;
use crate::input::Input;
use crate::requests::words;

/// Pages of its own: the first three are rings.
const PAGES: u32 = 24;

/// Pages behind its own: words of channels, grant table, status words, call pages.
const TABLE: u32 = 1;
const CALLS: u32 = TABLE + 64 + 8;
const SHARED: u32 = CALLS + 16;

/// The first grant of its own.
const FIRST: u32 = 8;

/// The version of the protocol.
const PROTOCOL: u32 = 0x524d_0002;

/// A channel: its number, the words that it has, and both of its eventfds.
struct Channel {
    number: u32,
    slot: u32,
    wakers: [OwnedFd; 2],
}

/// A guest.
pub struct HostileGuest {
    number: u8,
    socket: OwnedFd,
    memory: Memory,
    file: OwnedFd,
    domain: u16,
    version: u32,
    channels: Vec<Channel>,
    store: Option<StoreClient>,
}

impl HostileGuest {
    /// Connects, without having said anything.
    pub fn connect(path: &Path, number: u8) -> HostileGuest {
        let (memory, file) = Memory::shared((PAGES + SHARED) as usize * PAGE).expect("memory");
        let flags = SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        let address = SocketAddrUnix::new(path).expect("an address");
        retry_on_intr(|| connect(&socket, &address)).expect("the hypervisor listens");
        let (channels, store) = (Vec::new(), None);
        HostileGuest { number, socket, memory, file, domain: 0, version: 1, channels, store }
    }

    /// The number of its domain; 0: it has none.
    pub fn domain(&self) -> u16 {
        self.domain
    }

    /// Becomes a domain.
    pub fn introduce(&mut self, old: bool) {
        let version = if old { 1 } else { 2 };
        let mac = [0x52, 0x54, 0, 0, 3, self.number];
        let name = format!("hostile-{}", self.number);
        let message = hello(PAGES, version, mac, name.as_bytes());
        stubborn::send(&self.socket, &message, &[self.file.as_fd()]);
        self.answer();
        for page in 0..PAGES {
            self.enter(FIRST + page, 1, 0, page.into());
        }
    }

    /// Sends a first message that may be wrong.
    pub fn hello(&mut self, input: &mut Input<'_>) {
        let pages = match input.u8() {
            0..32 => input.u32(),
            choice => PAGES + u32::from(choice & 1),
        };
        let (version, choice) = (u32::from(input.u8() % 4), input.u8());
        let mac = [choice & 3, 0x54, 0, 0, 3, self.number];
        let len = usize::from(input.u8() % 40);
        let message = hello(pages, version, mac, input.take(len));
        let null = std::fs::File::open("/dev/null").expect("a device");
        let fds: &[BorrowedFd<'_>] = match choice >> 2 {
            0..8 => &[],
            8..12 => &[null.as_fd()],
            12..16 => &[self.socket.as_fd(), self.file.as_fd()],
            _ => &[self.file.as_fd()],
        };
        stubborn::send(&self.socket, &message, fds);
        self.answer();
    }

    /// Sends a request.
    pub fn request(&mut self, input: &mut Input<'_>) {
        let kind = if input.u8() < 8 { input.u32() } else { 2 + u32::from(input.u8() % 4) };
        let value = match input.u8() {
            0..16 => input.u32(),
            choice if kind == 4 && !self.channels.is_empty() => {
                self.channels[usize::from(choice) % self.channels.len()].number
            }
            choice => u32::from(choice & 7),
        };
        let extra = if input.u8() < 8 { input.take(4) } else { &[] };
        stubborn::send(&self.socket, &[words(&[kind, value]), extra.to_vec()].concat(), &[]);
        self.answer();
    }

    /// Sends any bytes, with descriptors.
    pub fn babble(&mut self, input: &mut Input<'_>) {
        let (len, count) = (usize::from(input.u16() % 300), usize::from(input.u8() % 5));
        stubborn::send(&self.socket, input.take(len), &vec![self.file.as_fd(); count]);
        self.answer();
    }

    /// Waits for an answer, and keeps what comes with it.
    fn answer(&mut self) {
        if !stubborn::wait(&self.socket) {
            return;
        }
        let mut bytes = [0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        if recvmsg(&self.socket, slices, &mut control, flags).is_err() {
            return;
        }
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let [kind, first, second] =
            [0, 4, 8].map(|at| u32::from_le_bytes(*bytes[at..].first_chunk().expect("a word")));
        match (kind, fds.len()) {
            (101, 1) => {
                (self.domain, self.version) = (first as u16, second);
                self.store = fds.pop().map(|end| StoreClient::new(end, self.domain));
            }
            (103 | 105, 2) => {
                let [own, theirs] = fds.try_into().expect("two descriptors");
                let wakers = [own, theirs];
                self.channels.push(Channel { number: first, slot: second, wakers });
            }
            _ => {}
        }
    }

    /// Does what a good frontend does to connect its interface with one queue.
    pub fn ready(&mut self, input: &mut Input<'_>) {
        let extras = input.u8();
        let before = self.channels.len();
        for _ in 0..2 {
            stubborn::send(&self.socket, &words(&[3, 0]), &[]);
            self.answer();
        }
        let [queue, control] = &self.channels[before..] else { return };
        if let Some(store) = &mut self.store {
            store.ready(FIRST, [queue.number, control.number], extras);
        }
    }

    /// Writes a message into the control ring, and notifies.
    pub fn command(&mut self, input: &mut Input<'_>) {
        let (slot, kind) = (u64::from(input.u8() % 16), input.u8() % 12);
        let mut word = || match input.u8() {
            0..32 => input.u32(),
            choice @ 32..96 => FIRST + u32::from(choice) % PAGES,
            choice => u32::from(choice % 8),
        };
        let request = words(&[7 | u32::from(kind) << 16, word(), word(), word()]);
        let ring = 2 * PAGE as u64;
        self.write(ring + 64 + 16 * slot, &request);
        self.write(ring, &(slot as u32 + 1).to_le_bytes());
        self.notify(input);
    }

    /// Sends a request to the store.
    pub fn store(&mut self, neighbour: u16, input: &mut Input<'_>) {
        if let Some(store) = &mut self.store {
            store.speak(neighbour, input);
        }
    }

    /// Sends any bytes to the store.
    pub fn babble_to_store(&mut self, input: &mut Input<'_>) {
        if let Some(store) = &mut self.store {
            store.babble(input);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).expect("within memory");
    }

    /// Writes a grant entry.
    fn enter(&self, reference: u32, flags: u16, to: u16, rest: u64) {
        let at = u64::from(PAGES + TABLE) * PAGE as u64;
        let head = u64::from(flags) | u64::from(to) << 16;
        match self.version {
            1 => {
                let entry = head | rest << 32;
                self.write(at + u64::from(reference) * 8, &entry.to_le_bytes());
            }
            _ => {
                let head = head | (rest >> 32) << 32;
                let entry = [head.to_le_bytes(), u64::from(rest as u32).to_le_bytes()].concat();
                self.write(at + u64::from(reference) * 16, &entry);
            }
        }
    }

    /// Changes a grant entry.
    pub fn grant(&mut self, neighbour: u16, input: &mut Input<'_>) {
        let (choice, reference) = (input.u8(), u32::from(input.u8() % 40));
        let flags = match choice {
            0..16 => input.u16(),
            16..48 => 0,
            48..80 => 1 | 1 << 2,
            80..112 => 3,
            112..144 => 1 | 1 << 8,
            _ => 1,
        };
        let to = [0, 0, neighbour, self.domain][usize::from(input.u8() % 4)];
        let page = if input.u8() < 16 { input.u64() } else { u64::from(input.u8()) % 26 };
        let more = if self.version == 2 { u64::from(input.u32()) << 32 } else { 0 };
        self.enter(reference, flags, to, page | more);
    }

    /// Writes requests that make sense, or almost, into a ring.
    pub fn ask(&mut self, input: &mut Input<'_>) {
        for _ in 0..1 + input.u8() % 8 {
            let (slot, kind) = (u64::from(input.u8() % 32), input.u8());
            let reference = match input.u8() {
                0..8 => input.u32(),
                choice => FIRST + u32::from(choice) % PAGES,
            };
            if kind & 1 == 0 {
                self.write(PAGE as u64 + 64 + 8 * slot + 4, &reference.to_le_bytes());
                continue;
            }
            let (offset, size) = (u32::from(input.u16() % 4100), u32::from(input.u16() % 4200));
            let request = match kind {
                0..32 => [1 | size << 16, 1 + u32::from(kind >> 4), 0],
                _ => [reference, offset | u32::from(kind >> 4) << 16, size << 16],
            };
            self.write(64 + 12 * slot, &words(&request));
        }
    }

    /// Writes a request index, and notifies.
    pub fn publish(&mut self, input: &mut Input<'_>) {
        let ring = u64::from(input.u8() & 1) * PAGE as u64;
        let index = if input.u8() < 8 { input.u32() } else { u32::from(input.u8() % 64) };
        self.write(ring, &index.to_le_bytes());
        self.notify(input);
    }

    /// Writes any word anywhere.
    pub fn scribble(&mut self, input: &mut Input<'_>) {
        let page = match input.u8() {
            0..128 => input.u8() % 4,
            _ => input.u8() % (PAGES + SHARED) as u8,
        };
        let at = u64::from(page) * PAGE as u64 + 4 * u64::from(input.u16() % 1024);
        self.write(at, &input.u32().to_le_bytes());
    }

    /// Writes a list of copies to a call page, and notifies.
    pub fn call(&mut self, neighbour: u16, input: &mut Input<'_>) {
        let vcpu = u64::from(input.u8() % 3);
        let at = (u64::from(PAGES + CALLS) + vcpu) * PAGE as u64;
        let count = if input.u8() < 8 { input.u32() } else { u32::from(input.u8() % 24) };
        for n in 0..u64::from(count.min(24)) {
            let domain = [0, neighbour, self.domain][usize::from(input.u8() % 3)];
            let from = u32::from(domain) | u32::from(input.u16() % 4100) << 16;
            let reference = FIRST + u32::from(input.u8()) % 32;
            let to = u32::from(input.u16() % 4100) | u32::from(input.u16() % 4100) << 16;
            let copy = words(&[reference, from, u32::from(input.u8() % 26), to]);
            self.write(at + 64 + 20 * n, &copy);
        }
        self.write(at + 8, &count.to_le_bytes());
        self.write(at, &input.u32().to_le_bytes());
        self.notify(input);
    }

    /// Notifies the other end of a channel, of which it has both descriptors.
    pub fn notify(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        for (n, channel) in self.channels.iter().enumerate() {
            if choice >= 64 || n == usize::from(choice) {
                let word = u64::from(PAGES) * PAGE as u64 + u64::from(channel.slot % 128) * 8 + 4;
                self.write(word, &1u32.to_le_bytes());
                signal(&channel.wakers[1]);
            }
        }
    }

    /// Fills a descriptor of a channel, and perhaps lets it block.
    pub fn clog(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        let Some(channel) = self.channels.get(usize::from(choice >> 2)) else { return };
        let waker = &channel.wakers[usize::from(choice & 1)];
        // The guest itself must not block, which it may have let the descriptor do before.
        let _ = rustix::fs::fcntl_setfl(waker, OFlags::NONBLOCK);
        let _ = rustix::io::write(waker, &(u64::MAX - 1).to_ne_bytes());
        if choice & 2 != 0 {
            let _ = rustix::fs::fcntl_setfl(waker, OFlags::empty());
        }
    }

    /// Waits until hypervisor and store have dealt with what was sent.
    pub fn await_answer(&mut self) {
        if let Some(store) = &mut self.store {
            store.await_answer();
        }
    }
}

/// Signals an eventfd, unless it is full: the guest itself may have let it
/// [block](HostileGuest::clog).
fn signal(waker: &OwnedFd) {
    let mut fds = [PollFd::new(waker, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
    }
}

/// A first message.
fn hello(pages: u32, version: u32, [a, b, c, d, e, f]: [u8; 6], name: &[u8]) -> Vec<u8> {
    let mac = [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, 0, 0])];
    [words(&[1, PROTOCOL, pages, version, mac[0], mac[1]]), name.to_vec()].concat()
}
