//! A virtual CPU of the guest: a thread that drives some of its queues.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use xen::netif::frontend::FrontError;

use crate::lane::Lane;
use crate::profiler::{Account, StageProfiler, Step};

/// Drives queues until `stop` is readable.
pub fn drive(
    mut lanes: Vec<Lane<'_>>,
    account: &Account,
    stop: &OwnedFd,
) -> Result<(), FrontError> {
    let mut profiler = StageProfiler::new(account);
    loop {
        profiler.turn();
        let mut busy = false;
        for lane in &mut lanes {
            busy |= lane.send(&mut profiler)?;
            busy |= lane.receive(&mut profiler)?;
        }
        if !busy {
            for lane in &mut lanes {
                busy |= lane.arm()?;
            }
            profiler.mark(Step::Signal);
        }
        if !busy && !wait(&lanes, stop) {
            return Ok(());
        }
    }
}

/// Sleeps until a queue has something to do. False: the end.
fn wait(lanes: &[Lane<'_>], stop: &OwnedFd) -> bool {
    let wakers = lanes.iter().flat_map(Lane::wakers);
    let mut fds: Vec<PollFd<'_>> =
        wakers.map(|waker| PollFd::from_borrowed_fd(waker, PollFlags::IN)).collect();
    fds.push(PollFd::new(stop, PollFlags::IN));
    // An interrupted wait is one that found nothing.
    let _ = poll(&mut fds, None);
    fds.last().is_some_and(|stop| stop.revents().is_empty())
}
