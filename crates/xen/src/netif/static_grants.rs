//! Pages of a frontend that stay mapped here, because the frontend uses them again and again
//! (netif.h, "Static Grants"; `XEN_NETIF_CTRL_TYPE_ADD_GREF_MAPPING`): bytes are copied from and to
//! them without a grant copy.
//!
//! Only pages that a frontend has named by control messages stay mapped: it may revoke any other as
//! soon as it has its response. Their number is bounded, for each queue and for all vifs together.
//! A queue's worker looks up pages in an immutable set, which it holds for at most a burst
//! ([`MappedPages::take`]). A page is removed by replacing the set, and unmapped when the last
//! burst with the old set is over. The frontend is answered only after that.
//!
//! # What a hostile frontend could try
//!
//! Naming pages that are not granted, or not for the use it claims, or twice, or more than it may;
//! removing pages that are in use, or were never added; and all of this as often as it can. Each is
//! refused, and the control ring bounds how many messages there are. A page that is mapped for
//! reading is never written to: frames received into it are copied by its grant.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use hypervisor::{DomId, GrantRef, Grants, PAGE};
use ring::{Page, Pages};

use crate::netif::hash_control::{CtrlError, CtrlSlot, ctrl_type};
use crate::page_budget::PageBudget;

/// Bytes of an entry of a list: `struct xen_netif_gref`.
const ENTRY: usize = 8;

/// Entries that a list may have: it lies in one page.
pub const MAX_LIST: u32 = (PAGE / ENTRY) as u32;

/// `XEN_NETIF_CTRLF_GREF_readonly`.
pub const READ_ONLY: u16 = 1;

/// An entry of a list (`struct xen_netif_gref`, little endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrefEntry {
    /// The page.
    pub reference: GrantRef,
    /// `XEN_NETIF_CTRLF_GREF_`.
    pub flags: u16,
    /// The outcome: `XEN_NETIF_CTRL_STATUS_`.
    pub status: u16,
}

impl GrefEntry {
    fn decode(bytes: &[u8; ENTRY]) -> Self {
        let [a, b, c, d, e, f, g, h] = *bytes;
        GrefEntry {
            reference: GrantRef(u32::from_le_bytes([a, b, c, d])),
            flags: u16::from_le_bytes([e, f]),
            status: u16::from_le_bytes([g, h]),
        }
    }

    /// The bytes of it.
    pub fn encode(self) -> [u8; ENTRY] {
        let ([a, b, c, d], [e, f], [g, h]) =
            (self.reference.0.to_le_bytes(), self.flags.to_le_bytes(), self.status.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// The entries of a list.
    pub fn decode_all(bytes: &[u8]) -> Vec<GrefEntry> {
        bytes.as_chunks::<ENTRY>().0.iter().map(GrefEntry::decode).collect()
    }

    /// A list of entries.
    pub fn encode_all(entries: &[GrefEntry]) -> Vec<u8> {
        entries.iter().flat_map(|entry| entry.encode()).collect()
    }
}

/// The lists that messages refer to: pages that the frontend grants.
pub trait GrantedLists {
    /// Copies the first `len` bytes of such a page. `None` when it is not granted.
    fn read(&self, reference: GrantRef, len: usize) -> Option<Vec<u8>>;

    /// Copies to the start of such a page. False when it is not granted for writing.
    fn write(&self, reference: GrantRef, bytes: &[u8]) -> bool;
}

/// The mapped pages of one queue, as its worker finds them.
#[derive(Debug, Default)]
pub struct MappedPages {
    /// How many there are.
    count: AtomicUsize,
    pages: ArcSwap<Pages>,
}

impl MappedPages {
    /// The pages as they are now, to be dropped when the burst is over. `None` when there are none.
    #[inline]
    pub fn take(&self) -> Option<Arc<Pages>> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { Some(self.pages.load_full()) }
    }

    /// Replaces the pages, and returns those that were there.
    fn put(&self, pages: Pages) -> Arc<Pages> {
        self.count.store(pages.len(), Ordering::Relaxed);
        self.pages.swap(Arc::new(pages))
    }

    /// How many pages there are.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All pages of a vif that stay mapped.
pub struct StaticGrants {
    domain: DomId,
    grants: Arc<dyn Grants>,
    /// Most pages of a queue.
    most: usize,
    queues: Vec<Arc<MappedPages>>,
    budget: Arc<PageBudget>,
    pending: Option<PendingUnmap>,
}

/// Removed pages that bursts may still be using, and the response to send once they are unmapped.
#[derive(Debug)]
struct PendingUnmap {
    pages: Vec<Arc<Page>>,
    response: CtrlSlot,
}

impl fmt::Debug for StaticGrants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticGrants")
            .field("most", &self.most)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

impl StaticGrants {
    /// The static grants of a vif of `domain` with `queues` queues, of which `most` pages in all
    /// may stay mapped.
    pub fn new(
        domain: DomId,
        grants: Arc<dyn Grants>,
        most: u32,
        queues: u16,
        budget: Arc<PageBudget>,
    ) -> Self {
        StaticGrants {
            domain,
            grants,
            most: most as usize / usize::from(queues.max(1)),
            queues: (0..queues).map(|_| Arc::default()).collect(),
            budget,
            pending: None,
        }
    }

    /// Whether a message is for [`answer`](Self::answer): it is about static grants, and the vif
    /// may have some.
    pub fn is_for(&self, [head, ..]: CtrlSlot) -> bool {
        let kinds = ctrl_type::GET_GREF_MAPPING_SIZE..=ctrl_type::DEL_GREF_MAPPING;
        self.most > 0 && kinds.contains(&((head >> 16) as u16))
    }

    /// The cost of a message: the most pages that the backend has to look at for it.
    pub fn weight([head, _, _, count]: CtrlSlot) -> u32 {
        match (head >> 16) as u16 {
            ctrl_type::ADD_GREF_MAPPING | ctrl_type::DEL_GREF_MAPPING => count.min(MAX_LIST),
            _ => 0,
        }
    }

    /// The number of pages that stay mapped, and its limit.
    pub fn size(&self) -> (usize, usize) {
        (
            self.queues.iter().map(|mapped_pages| mapped_pages.len()).sum(),
            self.most * self.queues.len(),
        )
    }

    /// The pages of queue number `queue`.
    ///
    /// # Errors
    /// When there is no such queue.
    pub fn mapped_pages(&self, queue: u32) -> Result<&Arc<MappedPages>, CtrlError> {
        self.queues.get(queue as usize).ok_or(CtrlError::InvalidParameter)
    }

    /// Executes a message, and returns the response. `None`: pages have to be unmapped first.
    /// [`finish_unmap`](Self::finish_unmap) returns the response then, and must do so before the
    /// next message.
    pub fn answer(&mut self, request: CtrlSlot, lists: &dyn GrantedLists) -> Option<CtrlSlot> {
        let [head, queue, list, count] = request;
        let outcome = match (head >> 16) as u16 {
            ctrl_type::GET_GREF_MAPPING_SIZE => self.mapped_pages(queue).map(|_| self.most as u32),
            ctrl_type::ADD_GREF_MAPPING => self
                .read(lists, GrantRef(list), count)
                .and_then(|list| self.add(queue, &list))
                .map(|()| 0),
            ctrl_type::DEL_GREF_MAPPING => {
                let removed = self.remove(queue, GrantRef(list), count, lists);
                if let Ok(pages) = removed {
                    let response = [head, 0, pages.len() as u32, 0];
                    self.pending = Some(PendingUnmap { pages, response });
                    return None;
                }
                removed.map(|_| 0)
            }
            _ => Err(CtrlError::NotSupported),
        };
        let (status, data) = outcome.map_or_else(|error| (error as u32, 0), |data| (0, data));
        Some([head, status, data, 0])
    }

    /// Reads a list of `count` entries, at most a page of them.
    fn read(
        &self,
        lists: &dyn GrantedLists,
        reference: GrantRef,
        count: u32,
    ) -> Result<Vec<GrefEntry>, CtrlError> {
        match count {
            0 => Ok(Vec::new()),
            1..=MAX_LIST => {
                let bytes = lists
                    .read(reference, count as usize * ENTRY)
                    .ok_or(CtrlError::InvalidParameter)?;
                Ok(GrefEntry::decode_all(&bytes))
            }
            _ => Err(CtrlError::InvalidParameter),
        }
    }

    /// Maps the pages of a list for a queue: all of them, or none.
    fn add(&mut self, queue: u32, list: &[GrefEntry]) -> Result<(), CtrlError> {
        let mapped_pages = self.mapped_pages(queue)?;
        let mapped = mapped_pages.pages.load();
        if mapped.len() + list.len() > self.most {
            return Err(CtrlError::BufferOverflow);
        }
        let mut listed = BTreeSet::new();
        let mut sound = |entry: &GrefEntry| {
            entry.flags & !READ_ONLY == 0
                && !mapped.has(entry.reference)
                && listed.insert(entry.reference)
        };
        if !list.iter().all(&mut sound) {
            return Err(CtrlError::InvalidParameter);
        }
        if !self.budget.take(list.len()) {
            return Err(CtrlError::BufferOverflow);
        }
        let more = list.iter().map(|entry| self.map(*entry)).collect::<Option<Vec<_>>>();
        let Some(pages) = more.and_then(|more| mapped.with(more)) else {
            self.budget.release(list.len());
            return Err(CtrlError::InvalidParameter);
        };
        mapped_pages.put(pages);
        Ok(())
    }

    fn map(&self, entry: GrefEntry) -> Option<(GrantRef, Arc<Page>)> {
        let write = entry.flags & READ_ONLY == 0;
        let page = self.grants.map_page(self.domain, entry.reference, write).ok()?;
        Some((entry.reference, Arc::new(page)))
    }

    /// Removes the pages of a list from those of a queue, and writes into the list which of them
    /// were mapped. From now on no burst finds them.
    fn remove(
        &self,
        queue: u32,
        at: GrantRef,
        count: u32,
        lists: &dyn GrantedLists,
    ) -> Result<Vec<Arc<Page>>, CtrlError> {
        let mapped_pages = self.mapped_pages(queue)?;
        let mut list = self.read(lists, at, count)?;
        let mapped = mapped_pages.pages.load();
        let mut found = BTreeSet::new();
        for entry in &mut list {
            let is_first = mapped.has(entry.reference) && found.insert(entry.reference);
            entry.status = if is_first { 0 } else { CtrlError::InvalidParameter as u16 };
        }
        // Nothing has changed yet, so a frontend whose list cannot be written loses nothing.
        if !list.is_empty() && !lists.write(at, &GrefEntry::encode_all(&list)) {
            return Err(CtrlError::InvalidParameter);
        }
        let references: Vec<GrantRef> = found.into_iter().collect();
        let (stay, gone) = mapped.without(&references);
        mapped_pages.put(stay);
        Ok(gone)
    }

    /// Whether a response waits for bursts to be over.
    pub fn is_unmap_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Unmaps removed pages that no earlier burst is still using. Returns the response when none is
    /// left.
    pub fn finish_unmap(&mut self) -> Option<CtrlSlot> {
        let PendingUnmap { pages, response } = self.pending.as_mut()?;
        let before = pages.len();
        // A page without another reference is in no set any more: no burst can find it.
        pages.retain_mut(|page| Arc::get_mut(page).is_none());
        self.budget.release(before - pages.len());
        let response = pages.is_empty().then_some(*response)?;
        self.pending = None;
        Some(response)
    }
}

impl Drop for StaticGrants {
    fn drop(&mut self) {
        let pending = self.pending.as_ref().map_or(0, |pending| pending.pages.len());
        self.budget.release(self.size().0 + pending);
    }
}

#[cfg(test)]
mod tests;
