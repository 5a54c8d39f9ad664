//! The guest's interface as long as it lives: connected to a backend, again and again if need be.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hypervisor::Domain;
use hypervisor::embedded::client::{ConnectError, Line, Wish as Admission, become_guest};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thiserror::Error;
use tracing::{debug, info, warn};
use xen::netif::frontend::{
    Caller, FrontError, Frontend, Kept, Landing, PageAllocator, Queue, Wish,
};
use xen::xenbus::State;

use crate::lane::Lane;
use crate::profiler::Account;
use crate::vcpu::drive;

/// How long a backend may take for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(300);

/// What flows are hashed with: the key that Microsoft's description of receive-side scaling has,
/// and most adapters.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Why there is no connection, or not any more.
#[derive(Debug, Error)]
pub enum Lost {
    /// The hypervisor does not take us.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The backend, or what is needed for it.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// Nothing left to make threads or descriptors of.
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The backend took too long, or closed.
    #[error("the backend {0}")]
    Backend(&'static str),
    /// The hypervisor is gone.
    #[error("the hypervisor is gone")]
    Gone,
}

/// What an interface is made of.
pub struct Interface {
    /// Where the hypervisor is.
    pub socket: PathBuf,
    /// What it is told about us.
    pub admission: Admission,
    /// Pages, of those that it has, for a device queue; none if it does not ask for one.
    pub landing: u32,
    /// Queues of the device inside.
    pub taps: Vec<OwnedFd>,
    /// Threads that drive them.
    pub vcpus: usize,
    /// Whether each direction of a queue has an event channel, where the backend can do that.
    pub split: bool,
    /// Readable at the end.
    pub stop: OwnedFd,
    /// Where their time goes.
    pub account: Account,
}

impl Interface {
    /// Keeps it connected until `stop`. How the first attempt goes is told through `first`; if that
    /// fails, it is the last.
    pub fn keep(&self, first: &mpsc::Sender<Result<(), Lost>>) {
        let mut told = false;
        while !self.stopped(Duration::ZERO) {
            let ready = || {
                if !told {
                    let _ = first.send(Ok(()));
                }
                told = true;
            };
            match self.live(ready) {
                Ok(()) => return,
                Err(lost) if !told => {
                    let _ = first.send(Err(lost));
                    return;
                }
                Err(lost) => warn!(%lost, "connecting again"),
            }
            self.stopped(PAUSE);
        }
    }

    /// Whether the end comes within `time`.
    fn stopped(&self, time: Duration) -> bool {
        let timeout = Timespec::try_from(time).ok();
        poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], timeout.as_ref())
            .is_ok_and(|ready| ready > 0)
    }

    /// One connection from beginning to end. `Ok`: it was to end.
    fn live(&self, ready: impl FnOnce()) -> Result<(), Lost> {
        let (guest, line) = become_guest(&self.socket, self.admission.clone())?;
        let guest: Arc<dyn Domain> = Arc::new(guest);
        let frontend = Frontend::find(Arc::clone(&guest), 0)?;
        debug!(domain = %guest.id(), "admitted");
        let mut ready = Some(ready);
        loop {
            if !frontend.bus().wait(PATIENCE, |state| state == State::InitWait)? {
                return Err(Lost::Backend("does not wait for us"));
            }
            let wish =
                Wish { queues: self.taps.len() as u16, split: self.split, ..Wish::default() };
            let others = guest.pages() - self.landing;
            let landing = if self.landing > 0 {
                frontend.land(PageAllocator::new(others, self.landing))?
            } else {
                None
            };
            let (queues, mut caller) = frontend.connect(&wish, PageAllocator::new(0, others))?;
            if !frontend.bus().wait(PATIENCE, |state| {
                matches!(state, State::Connected | State::Closing | State::Closed)
            })? {
                return Err(Lost::Backend("does not connect"));
            }
            let kept =
                caller.as_mut().map_or(Ok(Kept::default()), |caller| arrange(caller, &queues))?;
            if self.landing > 0 {
                let landed = frontend.landed()?;
                info!(device_queue = landed.as_deref().unwrap_or("none: the backend offers none"));
            }
            if let Some(ready) = ready.take() {
                ready();
            }
            if self.carry(&frontend, &line, (queues, landing), (caller, kept))? {
                return Ok(());
            }
            // The backend has closed: as it wants.
            frontend.bus().set_state(State::Closed)?;
            frontend.bus().wait(PATIENCE, |state| state == State::Closed)?;
            frontend.bus().set_state(State::Initialising)?;
        }
    }

    /// Carries frames as long as both ends are connected. True: it was to end.
    fn carry(
        &self,
        frontend: &Frontend,
        line: &Line,
        (queues, mut landing): (Vec<Queue>, Option<Landing>),
        (caller, kept): (Option<Caller>, Kept),
    ) -> Result<bool, Lost> {
        let halt =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let vcpus = self.vcpus.clamp(1, queues.len().max(1));
        let mut shares: Vec<Vec<Lane<'_>>> = (0..vcpus).map(|_| Vec::new()).collect();
        for (n, (tap, queue)) in self.taps.iter().zip(queues).enumerate() {
            if let Some(share) = shares.get_mut(n % vcpus) {
                share.push(Lane::new(tap, queue, landing.take()));
            }
        }
        std::thread::scope(|scope| {
            let mut failed = Ok(());
            let mut threads = Vec::new();
            for (n, share) in shares.into_iter().enumerate() {
                let thread = std::thread::Builder::new().name(format!("vcpu-{n}"));
                let halt = &halt;
                let run = move || {
                    let outcome = drive(share, &self.account, halt);
                    // One that fails ends the others, too.
                    let _ = rustix::io::write(halt, &1u64.to_ne_bytes());
                    outcome
                };
                match thread.spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => failed = Err(error),
                }
            }
            let outcome = match failed {
                Ok(()) => self.watch(frontend, line, &halt),
                Err(error) => Err(error.into()),
            };
            let outcome = outcome.and_then(|ended| let_go(frontend, caller, kept).map(|()| ended));
            let _ = rustix::io::write(&halt, &1u64.to_ne_bytes());
            for thread in threads {
                if let Ok(Err(error)) = thread.join() {
                    return Err(error.into());
                }
            }
            outcome
        })
    }

    /// Waits until something ends. True: we; false: the backend, or a queue.
    fn watch(&self, frontend: &Frontend, line: &Line, halt: &OwnedFd) -> Result<bool, Lost> {
        let mut told = 0;
        frontend.tell_times(told, &self.account.times())?;
        self.tell_times(frontend, &mut told)?;
        loop {
            let mut fds = [
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::from_borrowed_fd(line.end(), PollFlags::IN),
                PollFd::new(halt, PollFlags::IN),
                PollFd::from_borrowed_fd(frontend.bus().changes().waker(), PollFlags::IN),
            ];
            let _ = poll(&mut fds, None);
            let [stop, gone, halted, changed] = fds.map(|fd| !fd.revents().is_empty());
            if stop {
                return Ok(true);
            }
            if gone {
                return Err(Lost::Gone);
            }
            if halted {
                return Ok(false);
            }
            if changed {
                frontend.bus().changes().take();
                if frontend.bus().backend_state()? != State::Connected {
                    return Ok(false);
                }
                self.tell_times(frontend, &mut told)?;
            }
        }
    }

    /// Tells where time goes, if the backend has asked since.
    fn tell_times(&self, frontend: &Frontend, told: &mut u64) -> Result<(), Lost> {
        let number = frontend.times_wanted()?;
        if std::mem::replace(told, number) != number {
            self.account.set(number > 0);
            frontend.tell_times(number, &self.account.times())?;
        }
        Ok(())
    }
}

/// Has the backend keep each flow on one queue, and our pages mapped.
fn arrange(caller: &mut Caller, queues: &[Queue]) -> Result<Kept, FrontError> {
    if queues.len() > 1 {
        caller.spread(queues.len() as u16, &KEY)?;
    }
    let kept = Kept::all(caller, queues)?;
    debug!(pages = kept.len(), "kept mapped");
    Ok(kept)
}

/// Has the backend unmap our pages, so that they are ours again. One that has closed has done so.
fn let_go(frontend: &Frontend, caller: Option<Caller>, kept: Kept) -> Result<(), Lost> {
    if let Some(mut caller) = caller
        && !kept.is_empty()
        && frontend.bus().backend_state()? == State::Connected
    {
        kept.give_back(&mut caller)?;
    }
    Ok(())
}
