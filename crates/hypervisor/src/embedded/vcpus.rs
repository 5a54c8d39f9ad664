//! The virtual CPUs of a guest that is another process: for each, a thread that carries out the
//! guest's copy calls. The daemon's workers take no part in that work.
//!
//! The guest decides how much these threads do. So they have a lower priority than workers, and all
//! those of one guest together get at most the time of one CPU.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::setpriority_process;
use rustix::thread::gettid;

use super::Host;
use super::callpage::CallPage;
use super::events::{ChannelPair, Opened, Side};
use super::layout::CALLERS;
use super::local_hypercalls::{LocalHypercalls, processor_time};
use super::sync::lock;
use super::table::Table;
use super::throttle::Throttle;
use crate::RemotePort;

/// Their priority: beside a worker on the same CPU, such a thread gets a tenth of the time.
const NICE: i32 = 10;

/// How much of its share a guest can use at once.
const BURST: Duration = Duration::from_millis(100);

/// The virtual CPUs of one guest, by the numbers of their event channels.
#[derive(Debug)]
pub struct Vcpus {
    host: Arc<Host>,
    table: Arc<Table>,
    here: BTreeMap<u32, Thread>,
    share: Arc<Mutex<Throttle>>,
}

/// A thread that ends when this value is dropped.
#[derive(Debug)]
struct Thread {
    page: u32,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Vcpus {
    /// A guest without virtual CPUs.
    pub fn new(host: &Arc<Host>, table: &Arc<Table>) -> Vcpus {
        let share = Throttle::new(Duration::from_nanos(1), BURST, Instant::now());
        let share = Arc::new(Mutex::new(share));
        Vcpus { host: Arc::clone(host), table: Arc::clone(table), here: BTreeMap::new(), share }
    }

    /// Adds a virtual CPU. Returns its page for calls, and its channel.
    ///
    /// # Errors
    /// When there are too many, or the kernel has nothing left to make one of.
    pub fn add(&mut self) -> io::Result<(u32, Opened)> {
        let taken = |page: &u32| self.here.values().any(|thread| thread.page == *page);
        let full =
            || io::Error::new(io::ErrorKind::StorageFull, "the domain has too many virtual CPUs");
        let page = (0..CALLERS).find(|page| !taken(page)).ok_or_else(full)?;
        let mut caller = LocalHypercalls::new(&self.host, &self.table)?;
        let calls = CallPage::new(self.table.memory(), self.table.layout().call(page));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let opened = self.host.event_channels.open(&self.table, self.table.id())?;
        let (pair, end) = (Arc::clone(&opened.pair), Arc::clone(&stop));
        let share = Arc::clone(&self.share);
        let run = move || {
            // If the kernel refuses, the limit of one CPU still holds.
            let _ = setpriority_process(Some(gettid()), NICE);
            sandbox::enter_thread(sandbox::Role::Worker);
            serve(&mut caller, &calls, &pair, &end, &share);
        };
        let thread = Builder::new().name(format!("rm-vcpu-{}", self.table.id())).spawn(run);
        match thread {
            Ok(thread) => {
                self.here.insert(opened.number.0, Thread { page, stop, thread: Some(thread) });
                Ok((page, opened))
            }
            Err(error) => {
                self.host.event_channels.close(self.table.id(), opened.number);
                Err(error)
            }
        }
    }

    /// Ends the virtual CPU with that channel, if there is one.
    pub fn end(&mut self, channel: RemotePort) {
        self.here.remove(&channel.0);
    }
}

/// Carries out the guest's calls until `stop`.
fn serve(
    caller: &mut LocalHypercalls,
    calls: &CallPage,
    pair: &ChannelPair,
    stop: &OwnedFd,
    share: &Mutex<Throttle>,
) {
    let mut charged = processor_time();
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(pair.waker(Side::Binder), PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        // An interrupted wait counts as one without events.
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        pair.take(Side::Binder);
        if let Some(number) = calls.asked() {
            let outcomes = caller.run(calls.copies());
            calls.answer(number, outcomes);
            pair.raise(Side::Opener);
        }
        let now = processor_time();
        let took = now.saturating_sub(charged);
        charged = now;
        let wait = lock(share).spend(took.as_nanos() as u64, Instant::now());
        caller.table().copy_usage().took(took, wait);
        if !wait.is_zero()
            && let Ok(wait) = Timespec::try_from(wait)
        {
            let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&wait));
        }
    }
}

/// Waits, on the guest's side, for an answer, or for the end of the hypervisor, when `line` becomes
/// readable. False in the latter case.
pub fn wait(waker: impl AsFd, line: impl AsFd) -> bool {
    let mut fds = [
        PollFd::from_borrowed_fd(waker.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(line.as_fd(), PollFlags::empty()),
    ];
    let _ = poll(&mut fds, None);
    !fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
