//! How many granted pages may stay mapped.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages that the devices of one service may keep mapped: few enough that rings always find
/// addresses (of 65530 mappings that Linux allows a process, `vm.max_map_count`), even if each page
/// has a mapping of its own and both classes of devices use their whole budgets.
const MAX_PAGES: usize = 24 << 10;

/// The number of further pages that all devices of a service together may keep mapped.
#[derive(Debug)]
pub struct PageBudget(AtomicUsize);

impl Default for PageBudget {
    fn default() -> Self {
        PageBudget::new(MAX_PAGES)
    }
}

impl PageBudget {
    /// A budget of so many pages.
    pub fn new(pages: usize) -> Self {
        PageBudget(AtomicUsize::new(pages))
    }

    /// Takes pages out of the budget. False, with nothing taken: there are fewer.
    pub(crate) fn take(&self, pages: usize) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(pages))
            .is_ok()
    }

    /// Returns pages that are not mapped any more.
    pub(crate) fn release(&self, pages: usize) {
        self.0.fetch_add(pages, Ordering::Relaxed);
    }
}
