//! A hostile front-end: bare messages over a socket, bare bytes in memory files.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, ftruncate, memfd_create};

use super::stubborn;
use crate::input::Input;
use crate::requests::{FILE, body, longs, words};

/// Where, in the first memory file, the parts of a ring are: descriptors, driver area and device
/// area; and how far two rings are apart.
const DRIVER: u64 = 0x800;
const DEVICE: u64 = 0x1000;
const RING: u64 = 0x2000;

/// Entries of each ring.
const SIZE: u16 = 16;

/// Sizes of memory files that are no whole number of pages, or far too long.
const ODD: [u64; 6] = [0, 1, 4095, 4097, FILE - 1, 1 << 41];

/// A front-end, connected or not.
pub struct HostileFrontEnd {
    /// The path of its port.
    pub path: PathBuf,
    stream: Option<UnixStream>,
    files: [OwnedFd; 2],
    kicks: [OwnedFd; 4],
    calls: [OwnedFd; 4],
    null: File,
}

impl HostileFrontEnd {
    /// One that is not connected yet.
    pub fn new(path: PathBuf) -> Self {
        let event =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an event");
        let null = File::options().read(true).write(true).open("/dev/null").expect("a device");
        HostileFrontEnd {
            path,
            stream: None,
            files: [memory(FILE), memory(FILE)],
            kicks: std::array::from_fn(|_| event()),
            calls: std::array::from_fn(|_| event()),
            null,
        }
    }

    /// Connects, after an earlier connection has ended.
    pub fn connect(&mut self) {
        self.disconnect();
        self.stream = stubborn::connect(&self.path).ok();
    }

    /// Hangs up.
    pub fn disconnect(&mut self) {
        self.stream = None;
    }

    /// Sends bytes and descriptors.
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        if let Some(stream) = &self.stream {
            stubborn::send(stream, bytes, fds);
        }
    }

    fn say(&self, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send(&[words(&[code, 1, body.len() as u32]), body.to_vec()].concat(), fds);
    }

    /// Waits until the daemon has dealt with what was sent.
    pub fn await_answer(&self) {
        const GET_FEATURES: u32 = 1;
        if let Some(stream) = &self.stream
            && stubborn::discard(stream)
        {
            self.say(GET_FEATURES, &[], &[]);
            stubborn::wait(stream);
        }
    }

    /// Sends one message, which may be cut off, with descriptors that may be wrong.
    pub fn speak(&self, input: &mut Input<'_>) {
        let code = input.below(46);
        let payload = body(code, input);
        let (kind, choice) = (input.u8(), input.u8());
        let count = match (code, choice) {
            (_, 0..8) => usize::from(choice) + 1,
            (_, 8..12) => 0,
            (5, _) => 2,
            (12..=14, _) if payload.get(1) == Some(&0) => 1,
            (6 | 7 | 32 | 37, _) => 1,
            _ => 0,
        };
        let ring = usize::from(payload.first().copied().unwrap_or(0) % 4);
        let odd = memory(ODD[usize::from(kind) % ODD.len()]);
        let fds: Vec<BorrowedFd<'_>> =
            (0..count).map(|n| self.descriptor(code, ring, n, kind, &odd)).collect();
        let flags = if choice & 1 == 1 { 9 } else { 1 };
        let size = if kind == 255 { input.u32() } else { payload.len() as u32 };
        let mut bytes = [words(&[code, flags, size]), payload].concat();
        if choice == 255 {
            bytes.truncate(usize::from(input.u8()));
        }
        self.send(&bytes, &fds);
    }

    /// A descriptor, mostly of the kind that the request needs.
    fn descriptor<'a>(
        &'a self,
        code: u32,
        ring: usize,
        n: usize,
        kind: u8,
        odd: &'a OwnedFd,
    ) -> BorrowedFd<'a> {
        match (code, kind) {
            (_, 0..6) => odd.as_fd(),
            (_, 6..9) => self.null.as_fd(),
            (_, 9) => self.stream.as_ref().map_or(odd.as_fd(), AsFd::as_fd),
            (12..=14, 10..14) | (_, 14..18) => self.calls[ring].as_fd(),
            (12, _) => self.kicks[ring].as_fd(),
            (13 | 14, _) => self.calls[ring].as_fd(),
            _ => self.files[n % 2].as_fd(),
        }
    }

    /// Sends any bytes.
    pub fn babble(&self, input: &mut Input<'_>) {
        let len = usize::from(input.u8());
        self.send(input.take(len), &[]);
    }

    /// Sends all that a good front-end sends to start two queue pairs.
    pub fn ready(&self, input: &mut Input<'_>) {
        let packed = u64::from(input.u8() & 1) << 34;
        self.say(2, &longs(&[1 << 32 | 1 << 30 | 1 << 15 | packed]), &[]);
        self.say(16, &longs(&[1 << 15 | 1]), &[]);
        let files = [self.files[0].as_fd(), self.files[1].as_fd()];
        let table = [words(&[2, 0]), longs(&[0, FILE, 0, 0, FILE, FILE, FILE, 0])].concat();
        self.say(5, &table, &files);
        for ring in 0..4u32 {
            let at = RING * u64::from(ring);
            let places = longs(&[at, at + DEVICE, at + DRIVER, 0]);
            self.say(8, &words(&[ring, SIZE.into()]), &[]);
            self.say(9, &[words(&[ring, 0]), places].concat(), &[]);
            self.say(13, &longs(&[ring.into()]), &[self.calls[ring as usize].as_fd()]);
            self.say(12, &longs(&[ring.into()]), &[self.kicks[ring as usize].as_fd()]);
            self.say(18, &words(&[ring, 1]), &[]);
        }
    }

    /// Writes any bytes to a ring.
    pub fn scribble(&self, input: &mut Input<'_>) {
        let ring = u64::from(input.u8() % 4);
        let part = [0, 0x10, DRIVER, DRIVER + 2, DEVICE, RING - 0x800][input.below(6) as usize];
        let len = usize::from(input.u8() % 64);
        let _ = rustix::io::pwrite(&self.files[0], input.take(len), RING * ring + part);
    }

    /// Writes descriptors that look like some, and publishes them.
    pub fn publish(&self, input: &mut Input<'_>) {
        let (ring, count) = (u64::from(input.u8() % 4), u16::from(input.u8()) % (SIZE + 1));
        let receives = ring.is_multiple_of(2);
        for n in 0..count {
            let (choice, addr, len) = (input.u8(), u64::from(input.u16()), input.u16() % 4096);
            let addr = if choice < 8 { input.u64() } else { FILE + addr % (FILE - 4096) };
            let flags = u16::from(receives) << 1 ^ u16::from(choice < 16) * u16::from(choice & 7);
            let tail = [flags | u16::from(choice & 64 != 0) << 7, n + 1];
            let tail = if choice & 128 == 0 { tail } else { [tail[1], tail[0] | 0x80] };
            let bytes = [longs(&[addr]), words(&[len.into()])].concat();
            let bytes = [bytes, tail.iter().flat_map(|word| word.to_le_bytes()).collect()].concat();
            let _ = rustix::io::pwrite(&self.files[0], &bytes, RING * ring + 16 * u64::from(n));
            let head = RING * ring + DRIVER + 4 + 2 * u64::from(n);
            let _ = rustix::io::pwrite(&self.files[0], &n.to_le_bytes(), head);
        }
        let index = if input.u8() < 8 { input.u16() } else { count };
        let _ = rustix::io::pwrite(&self.files[0], &index.to_le_bytes(), RING * ring + DRIVER + 2);
        self.kick(ring as u8);
    }

    /// Writes a frame to where descriptors point.
    pub fn compose(&self, input: &mut Input<'_>) {
        let at = u64::from(input.u16()) % (FILE - 256);
        let len = usize::from(input.u8() % 128);
        let destination = match input.u8() {
            0..128 => [0xff; 6],
            choice => [0x52, 0x54, 0, 0, 1, choice & 7],
        };
        let bytes = [&[0; 12][..], &destination, input.take(len)].concat();
        let _ = rustix::io::pwrite(&self.files[1], &bytes, at);
    }

    /// Kicks a ring.
    pub fn kick(&self, ring: u8) {
        let _ = rustix::io::write(&self.kicks[usize::from(ring % 4)], &1u64.to_ne_bytes());
    }

    /// Cuts off a memory file, or makes it longer.
    pub fn resize(&self, input: &mut Input<'_>) {
        let file = &self.files[usize::from(input.u8() & 1)];
        let len = if input.u8() < 32 { 1 << 40 } else { u64::from(input.u16()) };
        let _ = ftruncate(file, len);
    }

    /// Fills an event that the daemon writes, and perhaps lets it block.
    pub fn clog(&self, input: &mut Input<'_>) {
        let choice = input.u8();
        let event = &self.calls[usize::from(choice % 4)];
        let _ = fcntl_setfl(event, OFlags::NONBLOCK);
        let _ = rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes());
        if choice & 4 != 0 {
            let _ = fcntl_setfl(event, OFlags::empty());
        }
    }
}

/// A memory file.
fn memory(len: u64) -> OwnedFd {
    let fd = memfd_create(c"fuzz", MemfdFlags::CLOEXEC).expect("a memory file");
    ftruncate(&fd, len).expect("room");
    fd
}
