//! The events that a sleeping driver waits for: interrupts of its rings, and a timer.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// The interrupts, and a timer that is exact: the limit of `epoll_wait` is in milliseconds.
pub(super) struct Alarm {
    epoll: Epoll,
    timer: OwnedFd,
}

impl Alarm {
    /// Waits for these interrupts.
    pub(super) fn new<'a>(calls: impl Iterator<Item = &'a EventFd>) -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let epoll = Epoll::new()?;
        for fd in calls.map(AsRawFd::as_raw_fd).chain([timer.as_raw_fd()]) {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, 0))?;
        }
        Ok(Alarm { epoll, timer })
    }

    /// Sleeps until there is an interrupt, or for this number of nanoseconds, less than a second.
    pub(super) fn wait(&self, nanoseconds: u64) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A time of 0 would switch the timer off.
        let value = Timespec { tv_sec: 0, tv_nsec: nanoseconds.clamp(1, 999_999_999) as i64 };
        let once = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        match self.epoll.wait(-1, &mut [EpollEvent::default(); 16]) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        match rustix::io::read(&self.timer, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

    #[test]
    fn a_timer_and_an_interrupt_end_a_sleep() {
        let call = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).unwrap();
        let alarm = Alarm::new([&call].into_iter()).unwrap();
        alarm.wait(1).unwrap();
        alarm.wait(0).unwrap();
        call.write(1).unwrap();
        alarm.wait(999_999_999).unwrap();
        assert_eq!(call.read().unwrap(), 1);
    }
}
