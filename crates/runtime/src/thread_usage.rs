//! Page faults and context switches, as the kernel counts them for each thread.

use std::ops::Sub;

use nix::sys::resource::{UsageWho, getrusage};

/// What the kernel has counted for one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Page faults, whether their pages were in memory or not.
    pub faults: u64,
    /// Times that the thread waited for something and gave up its CPU: voluntary context switches.
    pub sleeps: u64,
    /// Times that another thread was given the CPU instead: involuntary context switches.
    pub preemptions: u64,
}

impl ThreadUsage {
    /// The counts of the calling thread since it began. A system call.
    pub fn now() -> Self {
        // The call only fails for arguments that do not exist.
        getrusage(UsageWho::RUSAGE_THREAD).map_or_else(
            |_| ThreadUsage::default(),
            |usage| {
                let count = |count: i64| u64::try_from(count).unwrap_or(0);
                ThreadUsage {
                    faults: count(usage.minor_page_faults()) + count(usage.major_page_faults()),
                    sleeps: count(usage.voluntary_context_switches()),
                    preemptions: count(usage.involuntary_context_switches()),
                }
            },
        )
    }
}

impl ThreadUsage {
    /// Whether the thread may have waited for something in a time in which it used this much. A
    /// fault may have to wait for a process that changes the file at the time; the thread then
    /// sleeps. A thread that lost its CPU without a sleep did not wait for anything that a peer
    /// controls.
    pub fn waited(&self) -> bool {
        self.preemptions == 0 || self.sleeps > 0
    }
}

impl Sub for ThreadUsage {
    type Output = ThreadUsage;

    fn sub(self, before: ThreadUsage) -> ThreadUsage {
        ThreadUsage {
            faults: self.faults.saturating_sub(before.faults),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            preemptions: self.preemptions.saturating_sub(before.preemptions),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_waits_sleeps() {
        let before = ThreadUsage::now();
        std::thread::sleep(Duration::from_millis(1));
        assert!((ThreadUsage::now() - before).sleeps >= 1);
    }
}
