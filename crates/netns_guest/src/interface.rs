//! The guest's interface: connected to a backend, and reconnected when the backend or the
//! hypervisor comes back.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hypervisor::Domain;
use hypervisor::embedded::client::{ConnectError, Connection, GuestRequest, become_guest};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thiserror::Error;
use tracing::{debug, info, warn};
use xen::netif::frontend::{
    ControlRing, DeviceQueue, FrontError, Frontend, FrontendConfig, PageAllocator, Queue,
    StaticGrants,
};
use xen::xenbus::State;

use crate::profiler::Account;
use crate::tap_queue::TapQueue;
use crate::vcpu::serve;

/// How long a backend may take for one change of its state.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The pause before the next attempt to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(300);

/// The hash key: that of Microsoft's "Verifying the RSS hash calculation", which most adapters use.
const HASH_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Why a connection could not be made, or has ended.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The hypervisor does not admit the guest.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The frontend stopped with an error.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// No threads or descriptors are left.
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The backend takes too long.
    #[error("the backend {0}")]
    Backend(&'static str),
    /// The connection to the hypervisor is lost.
    #[error("the hypervisor is gone")]
    HypervisorGone,
}

/// The settings of an interface.
pub struct Interface {
    /// The hypervisor's socket.
    pub socket: PathBuf,
    /// The settings that the guest requests.
    pub admission: GuestRequest,
    /// How many of the guest's pages are for a device queue; zero if it requests none.
    pub device_queue_pages: u32,
    /// Queues of the TAP device.
    pub taps: Vec<OwnedFd>,
    /// Threads that serve them.
    pub vcpus: usize,
    /// Whether each direction of a queue has an event channel of its own, where the backend
    /// supports that (`feature-split-event-channels`).
    pub split: bool,
    /// Becomes readable when the interface must end.
    pub stop: OwnedFd,
    /// The profile of the threads' time.
    pub account: Account,
}

impl Interface {
    /// Keeps the interface connected until `stop` is readable. Sends the outcome of the first
    /// attempt to `first`: how many queues are in use. A failure of the first attempt is final.
    pub fn run(&self, first: &mpsc::Sender<Result<usize, ConnectionError>>) {
        let mut reported = false;
        while !self.stopped(Duration::ZERO) {
            let ready = |queues| {
                if !reported {
                    let _ = first.send(Ok(queues));
                }
                reported = true;
            };
            match self.connect(ready) {
                Ok(()) => return,
                Err(error) if !reported => {
                    let _ = first.send(Err(error));
                    return;
                }
                Err(error) => warn!(reason = %error, "disconnected; connecting again"),
            }
            self.stopped(RETRY_PAUSE);
        }
    }

    /// Whether `stop` becomes readable within `time`.
    fn stopped(&self, time: Duration) -> bool {
        let timeout = Timespec::try_from(time).ok();
        poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], timeout.as_ref())
            .is_ok_and(|ready| ready > 0)
    }

    /// Connects to the hypervisor, and serves the interface until `stop` is readable. Calls `ready`
    /// with the number of queues when the backend is connected for the first time.
    fn connect(&self, ready: impl FnOnce(usize)) -> Result<(), ConnectionError> {
        let (guest, line) = become_guest(&self.socket, self.admission.clone())?;
        let guest: Arc<dyn Domain> = Arc::new(guest);
        let frontend = Frontend::find(Arc::clone(&guest), 0)?;
        debug!(domain = %guest.id(), "admitted");
        let mut ready = Some(ready);
        loop {
            if !frontend.bus().wait(TIMEOUT, |state| state == State::InitWait)? {
                return Err(ConnectionError::Backend("does not offer a connection"));
            }
            let config = FrontendConfig {
                queues: self.taps.len() as u16,
                split: self.split,
                ..FrontendConfig::default()
            };
            let others = guest.pages() - self.device_queue_pages;
            let device_queue = if self.device_queue_pages > 0 {
                let pages = PageAllocator::new(others, self.device_queue_pages);
                frontend.request_device_queue(pages)?
            } else {
                None
            };
            let (queues, mut control_ring) =
                frontend.connect(&config, PageAllocator::new(0, others))?;
            if !frontend.bus().wait(TIMEOUT, |state| {
                matches!(state, State::Connected | State::Closing | State::Closed)
            })? {
                return Err(ConnectionError::Backend("does not connect"));
            }
            let static_grants = match &mut control_ring {
                Some(control_ring) => configure(control_ring, &queues)?,
                None => StaticGrants::default(),
            };
            if self.device_queue_pages > 0 {
                let status = frontend.device_queue_status()?;
                let status = status.as_deref().unwrap_or("none: the backend offers none");
                info!(device_queue = status, "connected");
            }
            if let Some(ready) = ready.take() {
                ready(queues.len());
            }
            if self.forward(
                &frontend,
                &line,
                (queues, device_queue),
                (control_ring, static_grants),
            )? {
                return Ok(());
            }
            // The backend has closed: this end follows.
            frontend.bus().set_state(State::Closed)?;
            frontend.bus().wait(TIMEOUT, |state| state == State::Closed)?;
            frontend.bus().set_state(State::Initialising)?;
        }
    }

    /// Forwards frames while both ends are connected. True when `stop` is readable; false when the
    /// backend closes.
    fn forward(
        &self,
        frontend: &Frontend,
        line: &Connection,
        (queues, mut device_queue): (Vec<Queue>, Option<DeviceQueue>),
        (control_ring, static_grants): (Option<ControlRing>, StaticGrants),
    ) -> Result<bool, ConnectionError> {
        let halt =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let vcpus = self.vcpus.clamp(1, queues.len().max(1));
        let mut shares: Vec<Vec<TapQueue<'_>>> = (0..vcpus).map(|_| Vec::new()).collect();
        for (n, (tap, queue)) in self.taps.iter().zip(queues).enumerate() {
            if let Some(share) = shares.get_mut(n % vcpus) {
                share.push(TapQueue::new(tap, queue, device_queue.take()));
            }
        }
        std::thread::scope(|scope| {
            let mut failed = Ok(());
            let mut threads = Vec::new();
            for (n, share) in shares.into_iter().enumerate() {
                let thread = std::thread::Builder::new().name(format!("vcpu-{n}"));
                let halt = &halt;
                let run = move || {
                    let outcome = serve(share, &self.account, halt);
                    // A thread that fails also ends the others.
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
            let outcome = outcome
                .and_then(|ended| unmap(frontend, control_ring, static_grants).map(|()| ended));
            let _ = rustix::io::write(&halt, &1u64.to_ne_bytes());
            for thread in threads {
                if let Ok(Err(error)) = thread.join() {
                    return Err(error.into());
                }
            }
            outcome
        })
    }

    /// Waits until something ends. True when `stop` is readable; false when the backend closes, or
    /// a thread has failed.
    fn watch(
        &self,
        frontend: &Frontend,
        line: &Connection,
        halt: &OwnedFd,
    ) -> Result<bool, ConnectionError> {
        let mut answered = 0;
        frontend.report_times(answered, &self.account.times())?;
        self.answer_profile(frontend, &mut answered)?;
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
                return Err(ConnectionError::HypervisorGone);
            }
            if halted {
                return Ok(false);
            }
            if changed {
                frontend.bus().changes().take();
                if frontend.bus().backend_state()? != State::Connected {
                    return Ok(false);
                }
                self.answer_profile(frontend, &mut answered)?;
            }
        }
    }

    /// Reports the profile, if the backend has requested it since.
    fn answer_profile(
        &self,
        frontend: &Frontend,
        answered: &mut u64,
    ) -> Result<(), ConnectionError> {
        let number = frontend.profile_request()?;
        if std::mem::replace(answered, number) != number {
            self.account.set(number > 0);
            frontend.report_times(number, &self.account.times())?;
        }
        Ok(())
    }
}

/// Makes the backend keep each flow on one queue, and the guest's pages mapped.
fn configure(control_ring: &mut ControlRing, queues: &[Queue]) -> Result<StaticGrants, FrontError> {
    if queues.len() > 1 {
        control_ring.set_hash(queues.len() as u16, &HASH_KEY)?;
    }
    let static_grants = StaticGrants::add_all(control_ring, queues)?;
    debug!(pages = static_grants.len(), "the backend keeps pages mapped");
    Ok(static_grants)
}

/// Makes the backend unmap the guest's pages, so that their grants can be revoked. A closed backend
/// has unmapped them already.
fn unmap(
    frontend: &Frontend,
    control_ring: Option<ControlRing>,
    static_grants: StaticGrants,
) -> Result<(), ConnectionError> {
    if let Some(mut control_ring) = control_ring
        && !static_grants.is_empty()
        && frontend.bus().backend_state()? == State::Connected
    {
        static_grants.remove_all(&mut control_ring)?;
    }
    Ok(())
}
