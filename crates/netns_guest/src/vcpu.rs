//! A virtual CPU of the guest: a thread that serves some of its queues.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use xen::netif::frontend::FrontError;

use crate::profiler::{Account, StageProfiler, Step};
use crate::tap_queue::TapQueue;

/// Serves queues until `stop` is readable.
pub fn serve(
    mut queues: Vec<TapQueue<'_>>,
    account: &Account,
    stop: &OwnedFd,
) -> Result<(), FrontError> {
    let mut profiler = StageProfiler::new(account);
    loop {
        profiler.begin();
        let mut busy = false;
        for queue in &mut queues {
            busy |= queue.send(&mut profiler)?;
            busy |= queue.receive(&mut profiler)?;
        }
        if !busy {
            for queue in &mut queues {
                busy |= queue.arm()?;
            }
            profiler.mark(Step::Signal);
        }
        if !busy && !wait(&queues, stop) {
            return Ok(());
        }
    }
}

/// Sleeps until a queue has something to do. False when `stop` is readable.
fn wait(queues: &[TapQueue<'_>], stop: &OwnedFd) -> bool {
    let wakers = queues.iter().flat_map(TapQueue::wakers);
    let mut fds: Vec<PollFd<'_>> =
        wakers.map(|waker| PollFd::from_borrowed_fd(waker, PollFlags::IN)).collect();
    fds.push(PollFd::new(stop, PollFlags::IN));
    // An interrupted wait counts as one without events.
    let _ = poll(&mut fds, None);
    fds.last().is_some_and(|stop| stop.revents().is_empty())
}
