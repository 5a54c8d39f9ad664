//! The virtual CPUs of a guest that is another process: for each, a thread that carries out the
//! guest's copy calls. The daemon's workers take no part in that work.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::Host;
use super::callpage::CallPage;
use super::events::{ChannelPair, Opened, Side};
use super::layout::CALLERS;
use super::local_hypercalls::{LocalHypercalls, processor_time};
use super::table::Table;
use crate::RemotePort;

/// The virtual CPUs of one guest, by the numbers of their event channels.
#[derive(Debug)]
pub struct Vcpus {
    host: Arc<Host>,
    table: Arc<Table>,
    here: BTreeMap<u32, Thread>,
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
    /// None yet.
    pub fn new(host: &Arc<Host>, table: &Arc<Table>) -> Vcpus {
        Vcpus { host: Arc::clone(host), table: Arc::clone(table), here: BTreeMap::new() }
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
        let run = move || {
            sandbox::enter_thread(sandbox::Role::Worker);
            serve(&mut caller, &calls, &pair, &end);
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
fn serve(caller: &mut LocalHypercalls, calls: &CallPage, pair: &ChannelPair, stop: &OwnedFd) {
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
        caller.table().copy_usage().took(now.saturating_sub(charged));
        charged = now;
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
