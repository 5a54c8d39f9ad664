//! Page faults in a peer's memory: their charges, and the violations that they reveal.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Memory;

use crate::fault::{self, Watch};
use crate::violation::Violation;

/// What first use of a memory's pages explains.
///
/// Faults and their delays are counted apart. A fault may be slow because the host is busy, and one
/// delay of a millisecond lasts as long as a thousand faults. If it took the place of these, the
/// first touches of an honest peer's other pages would count as excess.
#[derive(Debug)]
pub(super) struct ExpectedFaults {
    faults: AtomicU64,
    /// In units of the time that a fault takes at least.
    delays: AtomicU64,
}

impl ExpectedFaults {
    /// Each page is touched for the first time once, and perhaps once more after the peer has given
    /// it back.
    pub fn of(pages: u64) -> Self {
        ExpectedFaults { faults: AtomicU64::new(2 * pages), delays: AtomicU64::new(2 * pages) }
    }
}

/// Takes `seen` out of what is expected. Returns the part that is more.
fn excess(expected: &AtomicU64, seen: u64) -> u64 {
    let take = |expected: u64| Some(expected.saturating_sub(seen));
    let expected = expected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    seen.saturating_sub(expected.unwrap_or_default())
}

impl Memory {
    /// Notes page faults in this memory, which may have allocated pages.
    pub fn faulted(&self, faults: u64) {
        if let Some(charged) = &self.charged {
            charged.account.note(faults);
        }
    }

    /// Notes that the kernel has read or written `pages` pages of this memory, which may have
    /// allocated them. The thread of those faults is unknown. Costs nothing where the account
    /// has no limit.
    pub fn used_by_kernel(&self, pages: u64) {
        if let Some(charged) = &self.charged
            && charged.account.limit() < u64::MAX
        {
            charged.account.note(pages);
        }
    }

    /// Looks at the files, since `faults` page faults may have happened in this memory or in
    /// another one.
    pub fn examine(&self, faults: u64) {
        if let Some(charged) = &self.charged {
            charged.account.examine(faults);
        }
    }

    /// The part of `faults`, a number of page faults in this memory, that first use of its pages
    /// does not explain.
    pub fn excess_faults(&self, faults: u64) -> u64 {
        excess(&self.expected.faults, faults)
    }

    /// The part of the `delays` of page faults in this memory that first use of its pages does not
    /// explain, both in units of the time that a fault takes at least.
    pub fn excess_delays(&self, delays: u64) -> u64 {
        excess(&self.expected.delays, delays)
    }

    /// Whether the peer has truncated the file. All of the region then reads as zeros; its contents
    /// are lost, and the port should be stopped. The check is cheap enough for every burst.
    #[inline]
    pub fn is_faulted(&self) -> bool {
        fault::any()
            && self
                .regions
                .iter()
                .filter_map(|region| region.mapping.watch.as_ref())
                .any(Watch::is_faulted)
    }

    /// The peer's violation concerning its memory, if any: the peer has truncated the file or that
    /// of its log, or has caused this process to allocate more than allowed. As cheap as
    /// [`is_faulted`](Self::is_faulted).
    #[inline]
    pub fn violation(&self) -> Option<Violation> {
        if fault::any() { self.find_violation() } else { None }
    }

    #[cold]
    fn find_violation(&self) -> Option<Violation> {
        if self.is_faulted() {
            return Some(Violation::MemoryTruncated);
        }
        if self.log.as_ref().is_some_and(|log| log.is_faulted()) {
            return Some(Violation::LogTruncated);
        }
        self.charged.as_ref().and_then(|charged| charged.account.violation())
    }

    /// The violation to report instead of `violation`: after a truncation, rings read as zeros, so
    /// an error found in them is not the cause.
    #[cold]
    pub(crate) fn root_cause(&self, violation: Violation) -> Violation {
        if self.is_faulted() { Violation::MemoryTruncated } else { violation }
    }
}
