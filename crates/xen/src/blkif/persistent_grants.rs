//! Pages of a frontend that stay mapped here, because the frontend uses them again and again
//! (blkif.h, "feature-persistent"): data is copied from and to them without the hypervisor.
//!
//! A frontend that has agreed to it revokes the grants of its data, and of its lists of segments,
//! only after the connection has ended. So a page is mapped when its grant is first named, and
//! unmapped with its queue.
//!
//! # What a hostile frontend could try
//!
//! - Naming more and more grants: the pages of a queue, and of all vbds together, are limited.
//!   Beyond a limit, data is copied by grant copies.
//! - Naming grants that cannot be mapped, since a failure costs more than a failed copy: after
//!   [`MOST_FAILURES`] failures, a queue maps nothing more.
//! - Granting another page under a reference whose page is mapped: the old page stays the one that
//!   is used, and both are the frontend's own.
//! - Changing data while it is on its way: the data is the frontend's own.

use std::collections::HashMap;
use std::sync::Arc;

use hypervisor::{DomId, GrantRef, Grants, PAGE};
use ring::Memory;

use super::request::Segment;
use crate::page_budget::PageBudget;

/// Pages that a queue may keep mapped, as many as in Linux: the data and the lists of a ring of one
/// page whose requests have 32 segments each.
pub const MOST_PAGES: usize = 1056;

/// Attempts to map that may fail before a queue makes no more.
pub const MOST_FAILURES: u32 = 8;

/// The place of a mapped page.
#[derive(Clone, Copy, Debug)]
pub struct PagePlace {
    /// Which mapping.
    mapping: u32,
    /// Which page of the mapping.
    page: u32,
}

/// The mapped pages of one queue.
#[derive(Debug)]
pub struct PersistentGrants {
    domain: DomId,
    grants: Arc<dyn Grants>,
    budget: Arc<PageBudget>,
    /// Pages that were mapped together.
    mappings: Vec<Arc<Memory>>,
    /// The frontend chooses the references, so the table has a secret seed.
    places: HashMap<GrantRef, PagePlace>,
    failures: u32,
    /// A limit was reached: nothing more is mapped.
    exhausted: bool,
}

impl PersistentGrants {
    /// For a queue of a frontend in `domain`; nothing is mapped yet.
    pub fn new(domain: DomId, grants: Arc<dyn Grants>, budget: Arc<PageBudget>) -> Self {
        PersistentGrants {
            domain,
            grants,
            budget,
            mappings: Vec::new(),
            places: HashMap::new(),
            failures: 0,
            exhausted: false,
        }
    }

    /// Finds the pages of all segments, in their order, and maps those that are not mapped yet.
    /// False: some are not mapped, and cannot be.
    pub fn find(&mut self, segments: &[Segment], found: &mut Vec<PagePlace>) -> bool {
        self.look_up(segments, found) || (self.map(segments) && self.look_up(segments, found))
    }

    /// Finds the page with a list of segments, and maps it if necessary: its memory, and its
    /// address there. `None`: the page is not mapped, and cannot be.
    pub fn find_list(&mut self, page: GrantRef) -> Option<(&Arc<Memory>, u64)> {
        let list = [Segment { page, offset: 0, len: 0 }];
        if !self.places.contains_key(&page) && !self.map(&list) {
            return None;
        }
        self.memory(*self.places.get(&page)?)
    }

    fn look_up(&self, segments: &[Segment], found: &mut Vec<PagePlace>) -> bool {
        found.clear();
        found.extend(segments.iter().map_while(|segment| self.places.get(&segment.page)));
        found.len() == segments.len()
    }

    /// Maps the pages of segments that are not mapped. False: at least one could not be mapped.
    fn map(&mut self, segments: &[Segment]) -> bool {
        if self.exhausted {
            return false;
        }
        let is_new = |page: &GrantRef| !self.places.contains_key(page);
        let mut new: Vec<_> = segments.iter().map(|segment| segment.page).filter(is_new).collect();
        new.sort_unstable();
        new.dedup();
        if self.places.len() + new.len() > MOST_PAGES || !self.budget.take(new.len()) {
            self.exhausted = true;
            return false;
        }
        let Ok(memory) = self.grants.map(self.domain, &new) else {
            self.budget.release(new.len());
            self.failures += 1;
            self.exhausted = self.failures == MOST_FAILURES;
            return false;
        };
        let mapping = self.mappings.len() as u32;
        self.mappings.push(memory);
        self.places.extend((0..).zip(new).map(|(page, new)| (new, PagePlace { mapping, page })));
        true
    }

    /// The memory of a page, and the page's address there. `None` is impossible for a place that
    /// [`find`](Self::find) has found.
    pub fn memory(&self, place: PagePlace) -> Option<(&Arc<Memory>, u64)> {
        let memory = self.mappings.get(place.mapping as usize)?;
        Some((memory, u64::from(place.page) * PAGE as u64))
    }
}

impl Drop for PersistentGrants {
    fn drop(&mut self) {
        self.budget.release(self.places.len());
    }
}
