//! A process between QEMU and a daemon that hands on all messages, and keeps a log of written pages
//! of its own in between. It forgets the last pages of that log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use ring::Memory;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::time::Timespec;

/// Requests that matter here (vhost-user, "Front-end message types").
const SET_LOG_BASE: u32 = 6;
const SET_VRING_ADDR: u32 = 9;
const GET_VRING_BASE: u32 = 11;
/// Request, flags and size.
const HEADER: usize = 12;
/// More than any message has.
const MOST: usize = 4096;
const PAGE: u64 = 4096;
/// How long marks wait before QEMU sees them, in nanoseconds: meanwhile several packets come.
const HELD: i64 = 400_000_000;

/// The process between QEMU and the daemon.
pub struct Forgetful {
    path: PathBuf,
    forgotten: Arc<Mutex<BTreeSet<u64>>>,
}

impl Forgetful {
    /// Listens in `folder` for a QEMU, which it connects to the daemon's socket.
    pub fn start(folder: &Path, daemon: PathBuf) -> Forgetful {
        let path = folder.join("forgetful.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let forgotten = Arc::<Mutex<BTreeSet<u64>>>::default();
        let shared = Arc::clone(&forgotten);
        // It ends with the connection.
        std::thread::spawn(move || {
            let front = listener.accept().unwrap().0;
            let back = UnixStream::connect(daemon).unwrap();
            Relay { front, back, log: None, used: BTreeSet::new(), forgotten: shared }.run();
        });
        Forgetful { path, forgotten }
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.path.clone()
    }

    /// The pages that were forgotten when the rings were stopped.
    pub fn forgotten(&self) -> BTreeSet<u64> {
        self.forgotten.lock().clone()
    }
}

struct Relay {
    front: UnixStream,
    back: UnixStream,
    log: Option<Log>,
    /// The pages of used rings, which QEMU itself takes for written when it stops a ring.
    used: BTreeSet<u64>,
    forgotten: Arc<Mutex<BTreeSet<u64>>>,
}

/// The daemon's log, and QEMU's.
struct Log {
    marks: Memory,
    theirs: File,
    offset: u64,
    len: u64,
}

impl Relay {
    fn run(&mut self) {
        loop {
            let mut fds = [&self.front, &self.back].map(|end| PollFd::new(end, PollFlags::IN));
            let held = Timespec { tv_sec: 0, tv_nsec: HELD };
            poll(&mut fds, Some(&held)).unwrap();
            let ready = fds.map(|fd| !fd.revents().is_empty());
            let goes_on = match ready {
                [true, _] => self.hand_on_request(),
                [_, true] => self.hand_on_answer(),
                _ => {
                    self.show(|_| true);
                    true
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// A message of QEMU's.
    fn hand_on_request(&mut self) -> bool {
        let Some((bytes, mut fds)) = message(&self.front) else { return false };
        let word = |at: usize| {
            bytes.get(at..at + 8).map_or(0, |it| u64::from_le_bytes(it.try_into().unwrap()))
        };
        match request(&bytes) {
            SET_LOG_BASE if !fds.is_empty() => {
                let (len, offset) = (word(HEADER), word(HEADER + 8));
                let (marks, own) = Memory::shared((len + offset) as usize).unwrap();
                let theirs = File::from(std::mem::replace(&mut fds[0], own));
                self.show(|_| true);
                self.log = Some(Log { marks, theirs, offset, len });
                self.forgotten.lock().clear();
            }
            // Index and flags, then the addresses of descriptors, used ring, available ring and
            // log.
            SET_VRING_ADDR => {
                let first = word(HEADER + 32) / PAGE;
                self.used.extend(first..first + 4);
            }
            _ => {}
        }
        send(&self.back, &bytes, &fds)
    }

    /// A message of the daemon's.
    fn hand_on_answer(&mut self) -> bool {
        let Some((bytes, fds)) = message(&self.back) else { return false };
        let stops = request(&bytes) == GET_VRING_BASE;
        let mut forgotten = self.forgotten.lock();
        self.show(|page| {
            if stops && !self.used.contains(&page) {
                forgotten.insert(page);
            }
            !forgotten.contains(&page)
        });
        drop(forgotten);
        send(&self.front, &bytes, &fds)
    }

    /// Lets QEMU see the marks since the last time, those of pages that are `wanted`.
    fn show(&self, mut wanted: impl FnMut(u64) -> bool) {
        let Some(log) = &self.log else { return };
        for at in (0..log.len).step_by(8) {
            let at = log.offset + at;
            let mut new = log.marks.atomic_u64(at).unwrap().swap(0, Ordering::AcqRel);
            let page = |bit: u64| 8 * (at - log.offset) + bit;
            for bit in (0..64).filter(|bit| new >> bit & 1 != 0).collect::<Vec<_>>() {
                if !wanted(page(bit)) {
                    new &= !(1 << bit);
                }
            }
            if new != 0 {
                // QEMU clears marks meanwhile. Those that come back mean a page that is copied once
                // more.
                let mut old = [0; 8];
                log.theirs.read_exact_at(&mut old, at).unwrap();
                let both = u64::from_le_bytes(old) | new;
                log.theirs.write_all_at(&both.to_le_bytes(), at).unwrap();
            }
        }
    }
}

fn request(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |it| u32::from_le_bytes(*it))
}

/// One message, and what came with it.
fn message(from: &UnixStream) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; HEADER + MOST];
    let (mut have, mut fds) = (0, Vec::new());
    let mut need = HEADER;
    while have < need {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut bytes[have..need];
        let got = recvmsg(from, &mut [IoSliceMut::new(room)], &mut control, RecvFlags::empty());
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        match got {
            Ok(got) if got.bytes > 0 => have += got.bytes,
            _ => return None,
        }
        if have == HEADER {
            need += u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        }
    }
    bytes.truncate(need);
    Some((bytes, fds))
}

fn send(to: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> bool {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent = sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    sent.is_ok_and(|sent| sent == bytes.len())
}
