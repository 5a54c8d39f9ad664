//! A guest that consists of our frontend and a thread for each queue. It has no kernel, whose work
//! would hide what is measured.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hypervisor::Domain;
use hypervisor::embedded::Version;
use hypervisor::embedded::client::{Connection, GuestRequest, become_guest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xen::netif::frontend::{
    ControlRing, Frame, FrameSource, FrontError, Frontend, FrontendConfig, PageAllocator, Queue,
    StaticGrants,
};
use xen::xenbus::State;

use super::frames::Frames;

/// How long the backend may take for anything.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest sleep of a thread before it checks whether it has to end.
const NAP: Duration = Duration::from_millis(10);
/// Frames that are carried in one direction before the other direction.
const QUANTUM: usize = 64;
/// Between the bursts of a paced sender, and how long those are.
const PACE: Duration = Duration::from_micros(50);
const BURST: usize = 4;

/// The role of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends as fast as it can.
    Send,
    /// Sends a few, and sleeps.
    Pace,
    /// Sends a frame, and waits until it is back.
    Ask,
    /// Receives frames.
    Receive,
    /// Sends received frames back.
    Answer,
}

/// The counts of a queue's thread so far.
#[derive(Debug, Default)]
pub struct Meter {
    /// Frames received.
    pub frames: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// The thread, once it runs.
    pub thread: AtomicU32,
}

/// A guest.
pub struct TestGuest {
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Its address.
    pub mac: [u8; 6],
    _frontend: Frontend,
    _line: Arc<Connection>,
    _control: (Option<ControlRing>, StaticGrants),
}

impl TestGuest {
    /// A guest of the daemon that listens there.
    ///
    /// # Errors
    /// When the daemon refuses the connection.
    pub fn connect(socket: &Path, name: &str, mac: [u8; 6], queues: u16) -> io::Result<TestGuest> {
        let admission = GuestRequest {
            pages: Frontend::pages(queues),
            version: Version::V2,
            mac,
            name: name.into(),
        };
        let (guest, line) = become_guest(socket, admission).map_err(io::Error::other)?;
        let guest: Arc<dyn Domain> = Arc::new(guest);
        let frontend = Frontend::find(Arc::clone(&guest), 0).map_err(io::Error::other)?;
        await_state(&frontend, State::InitWait)?;
        let config = FrontendConfig { queues, ..FrontendConfig::default() };
        let connected = frontend
            .connect(&config, PageAllocator::new(0, guest.pages()))
            .map_err(io::Error::other)?;
        await_state(&frontend, State::Connected)?;
        let (queues, mut caller) = connected;
        // Like a stock Linux guest, it leaves the choice of its queue to the backend.
        let kept = caller
            .as_mut()
            .map_or(Ok(StaticGrants::default()), |caller| StaticGrants::add_all(caller, &queues));
        let kept = kept.map_err(io::Error::other)?;
        Ok(TestGuest { queues, mac, _frontend: frontend, _line: line, _control: (caller, kept) })
    }
}

fn await_state(frontend: &Frontend, wanted: State) -> io::Result<()> {
    match frontend.bus().wait(TIMEOUT, |state| state == wanted).map_err(io::Error::other)? {
        true => Ok(()),
        false => Err(io::Error::other("the backend takes too long")),
    }
}

/// A thread with a queue.
pub struct Vcpu<'a> {
    queue: &'a mut Queue,
    role: Role,
    frames: Frames,
    meter: &'a Meter,
    /// There was no room for the next frame.
    blocked: bool,
    /// A frame is on its way there or back.
    asked: bool,
    frame: Frame,
    read: Vec<u8>,
}

impl<'a> Vcpu<'a> {
    /// The state of `queue`'s thread, which sends `frames` if it sends.
    pub fn new(queue: &'a mut Queue, role: Role, frames: Frames, meter: &'a Meter) -> Self {
        let (frame, read) = (Frame::default(), vec![0; usize::from(u16::MAX)]);
        Vcpu { queue, role, frames, meter, blocked: false, asked: false, frame, read }
    }

    /// Works until `stop`.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn run(mut self, stop: &AtomicBool) -> Result<(), FrontError> {
        self.meter
            .thread
            .store(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), Relaxed);
        // This frame lets the switch learn the address.
        self.send(1)?;
        while !stop.load(Relaxed) {
            let received = self.receive()?;
            let sent = match self.role {
                Role::Send => self.send(QUANTUM)?,
                Role::Ask if !self.asked => {
                    self.asked = true;
                    self.send(1)?
                }
                Role::Pace => {
                    std::thread::sleep(PACE);
                    self.send(BURST)?
                }
                Role::Answer => self.send(received)?,
                Role::Ask | Role::Receive => 0,
            };
            if received + sent == 0 {
                self.sleep()?;
            }
        }
        Ok(())
    }

    /// Sends up to `most` frames, and returns how many.
    fn send(&mut self, most: usize) -> Result<usize, FrontError> {
        let tx = &mut self.queue.tx;
        tx.collect()?;
        self.blocked = false;
        let mut count = 0;
        while count < most {
            let Some(place) = tx.place() else {
                self.blocked = true;
                break;
            };
            let (head, len, meta) = self.frames.next();
            tx.ring().memory().write(place, head)?;
            tx.send(len, meta)?;
            count += 1;
        }
        tx.flush()?;
        Ok(count)
    }

    /// Reads the frames that came, as their receiver does, and returns how many.
    fn receive(&mut self) -> Result<usize, FrontError> {
        let rx = &mut self.queue.rx;
        let (mut count, mut bytes) = (0, 0);
        while count < QUANTUM && rx.next(&mut self.frame)? {
            for (addr, len) in &self.frame.pieces {
                let into = self.read.get_mut(..*len as usize).unwrap_or_default();
                rx.ring().memory().read(*addr, into)?;
            }
            (count, bytes) = (count + 1, bytes + u64::from(self.frame.len));
        }
        rx.post()?;
        if count > 0 {
            self.asked = false;
            self.meter.frames.fetch_add(count as u64, Relaxed);
            self.meter.bytes.fetch_add(bytes, Relaxed);
        }
        Ok(count)
    }

    /// Sleeps until there is something to do, as a guest does.
    fn sleep(&mut self) -> Result<(), FrontError> {
        let Queue { tx, rx, .. } = &mut *self.queue;
        rx.ring().channel().take();
        tx.ring().channel().take();
        if rx.arm()? || self.blocked && tx.arm()? {
            return Ok(());
        }
        let mut fds = [rx.ring().channel().waker(), tx.ring().channel().waker()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // An interrupted sleep only ends early.
        let _ = poll(&mut fds, Timespec::try_from(NAP).ok().as_ref());
        Ok(())
    }
}
