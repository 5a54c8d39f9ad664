//! Pages of a frontend that stay mapped here, because it says that they come back (netif.h, "Static
//! Grants"): what is copied from and to them needs no grant operation.
//!
//! Only pages that a frontend has named by control messages are kept: any other it may take back as
//! soon as it has its response. How many is bounded, for each queue and for all vifs together. A
//! queue's worker looks pages up in a set that never changes, and that it has for a burst at most
//! ([`Shelf::take`]); a page is taken off by putting another set in its place, and is unmapped once
//! the last burst with the old one is over. Only then does the frontend hear of it.
//!
//! A frontend may name pages that are not granted, or not for what it says, or twice, or more than
//! it may; it may take off what is in use, or was never there; and it may do all of this as often
//! as it is let. All that comes of it is a refusal. Nor does a page that is mapped for reading
//! become one to write to: what is received into it goes by its grant, as without us.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hypervisor::{DomId, GrantRef, Grants, PAGE};
use ring::{Page, Pages};

use crate::netif::control::{Refusal, Slot, message};

/// Bytes of an entry of a list: `struct xen_netif_gref`.
const ENTRY: usize = 8;

/// Entries that a list may have: it is one page.
pub const LIST: u32 = (PAGE / ENTRY) as u32;

/// `XEN_NETIF_CTRLF_GREF_readonly`.
pub const READ_ONLY: u16 = 1;

/// Pages that the vifs of one service keep mapped at most: so many that rings always find
/// addresses, too.
const MOST: usize = 24 << 10;

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The page.
    pub reference: GrantRef,
    /// `XEN_NETIF_CTRLF_GREF_`.
    pub flags: u16,
    /// What became of it: `XEN_NETIF_CTRL_STATUS_`.
    pub status: u16,
}

impl Entry {
    fn decode(bytes: &[u8; ENTRY]) -> Self {
        let [a, b, c, d, e, f, g, h] = *bytes;
        Entry {
            reference: GrantRef(u32::from_le_bytes([a, b, c, d])),
            flags: u16::from_le_bytes([e, f]),
            status: u16::from_le_bytes([g, h]),
        }
    }

    /// As it is in a list.
    pub fn encode(self) -> [u8; ENTRY] {
        let ([a, b, c, d], [e, f], [g, h]) =
            (self.reference.0.to_le_bytes(), self.flags.to_le_bytes(), self.status.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// The entries of a list.
    pub fn decode_all(bytes: &[u8]) -> Vec<Entry> {
        bytes.as_chunks::<ENTRY>().0.iter().map(Entry::decode).collect()
    }

    /// A list of entries.
    pub fn encode_all(entries: &[Entry]) -> Vec<u8> {
        entries.iter().flat_map(|entry| entry.encode()).collect()
    }
}

/// Where a frontend's lists are: pages that it grants.
pub trait Lists {
    /// The first `len` bytes of such a page. `None`: they can't be had.
    fn read(&self, reference: GrantRef, len: usize) -> Option<Vec<u8>>;

    /// Writes to the start of such a page. Whether that could be done.
    fn write(&self, reference: GrantRef, bytes: &[u8]) -> bool;
}

/// How many more pages all vifs together may keep.
#[derive(Debug)]
pub struct Budget(AtomicUsize);

impl Default for Budget {
    fn default() -> Self {
        Budget(AtomicUsize::new(MOST))
    }
}

impl Budget {
    fn take(&self, pages: usize) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(pages))
            .is_ok()
    }

    fn give_back(&self, pages: usize) {
        self.0.fetch_add(pages, Ordering::Relaxed);
    }
}

/// The pages of one queue, where its worker finds them.
#[derive(Debug, Default)]
pub struct Shelf {
    /// How many there are.
    count: AtomicUsize,
    pages: Mutex<Arc<Pages>>,
}

impl Shelf {
    /// The pages as they are now, to be dropped when the burst is over. `None`: there are none, and
    /// no lock was taken.
    #[inline]
    pub fn take(&self) -> Option<Arc<Pages>> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { Some(self.get()) }
    }

    fn get(&self) -> Arc<Pages> {
        Arc::clone(&self.pages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts other pages in the place of those that are there, and returns these.
    fn put(&self, pages: Pages) -> Arc<Pages> {
        self.count.store(pages.len(), Ordering::Relaxed);
        std::mem::replace(
            &mut *self.pages.lock().unwrap_or_else(PoisonError::into_inner),
            Arc::new(pages),
        )
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

/// All pages that are kept of a vif.
pub struct Cache {
    domain: DomId,
    grants: Arc<dyn Grants>,
    /// Pages of a queue, at most.
    most: usize,
    shelves: Vec<Arc<Shelf>>,
    budget: Arc<Budget>,
    leaving: Option<Leaving>,
}

/// Pages that are off their shelf, and that bursts may be using; and the answer, once they are
/// unmapped.
#[derive(Debug)]
struct Leaving {
    pages: Vec<Arc<Page>>,
    answer: Slot,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("most", &self.most)
            .field("shelves", &self.shelves)
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// For a vif of `domain` with so many queues, of which `most` pages may be kept in all.
    pub fn new(
        domain: DomId,
        grants: Arc<dyn Grants>,
        most: u32,
        queues: u16,
        budget: Arc<Budget>,
    ) -> Self {
        let shelves = (0..queues).map(|_| Arc::default()).collect();
        Cache {
            domain,
            grants,
            most: most as usize / usize::from(queues.max(1)),
            shelves,
            budget,
            leaving: None,
        }
    }

    /// Whether a message is about these pages, and any may be kept: then it is for
    /// [`answer`](Self::answer).
    pub fn is_for(&self, [head, ..]: Slot) -> bool {
        let kinds = message::GET_GREF_MAPPING_SIZE..=message::DEL_GREF_MAPPING;
        self.most > 0 && kinds.contains(&((head >> 16) as u16))
    }

    /// How many pages a message makes us look at, at most.
    pub fn weight([head, _, _, count]: Slot) -> u32 {
        match (head >> 16) as u16 {
            message::ADD_GREF_MAPPING | message::DEL_GREF_MAPPING => count.min(LIST),
            _ => 0,
        }
    }

    /// How many pages are kept, and how many may be.
    pub fn size(&self) -> (usize, usize) {
        (self.shelves.iter().map(|shelf| shelf.len()).sum(), self.most * self.shelves.len())
    }

    /// The pages of queue number `queue`.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn shelf(&self, queue: u32) -> Result<&Arc<Shelf>, Refusal> {
        self.shelves.get(queue as usize).ok_or(Refusal::InvalidParameter)
    }

    /// Obeys a message, and answers it. `None`: pages have to be unmapped first, and
    /// [`settle`](Self::settle) answers. It has to, before the next message.
    pub fn answer(&mut self, request: Slot, lists: &dyn Lists) -> Option<Slot> {
        let [head, queue, list, count] = request;
        let outcome = match (head >> 16) as u16 {
            message::GET_GREF_MAPPING_SIZE => self.shelf(queue).map(|_| self.most as u32),
            message::ADD_GREF_MAPPING => self
                .read(lists, GrantRef(list), count)
                .and_then(|list| self.add(queue, &list))
                .map(|()| 0),
            message::DEL_GREF_MAPPING => {
                let removed = self.remove((queue, GrantRef(list), count), lists);
                if let Ok(pages) = removed {
                    let answer = [head, 0, pages.len() as u32, 0];
                    self.leaving = Some(Leaving { pages, answer });
                    return None;
                }
                removed.map(|_| 0)
            }
            _ => Err(Refusal::NotSupported),
        };
        let (status, data) = outcome.map_or_else(|refusal| (refusal as u32, 0), |data| (0, data));
        Some([head, status, data, 0])
    }

    /// A list of so many entries, at most a page of them.
    fn read(
        &self,
        lists: &dyn Lists,
        reference: GrantRef,
        count: u32,
    ) -> Result<Vec<Entry>, Refusal> {
        match count {
            0 => Ok(Vec::new()),
            1..=LIST => {
                let bytes = lists
                    .read(reference, count as usize * ENTRY)
                    .ok_or(Refusal::InvalidParameter)?;
                Ok(Entry::decode_all(&bytes))
            }
            _ => Err(Refusal::InvalidParameter),
        }
    }

    /// Maps the pages of a list, and keeps them for a queue: all of them, or none.
    fn add(&mut self, queue: u32, list: &[Entry]) -> Result<(), Refusal> {
        let shelf = self.shelf(queue)?;
        let kept = shelf.get();
        if kept.len() + list.len() > self.most {
            return Err(Refusal::BufferOverflow);
        }
        let mut listed = BTreeSet::new();
        let mut sound = |entry: &Entry| {
            entry.flags & !READ_ONLY == 0
                && !kept.has(entry.reference)
                && listed.insert(entry.reference)
        };
        if !list.iter().all(&mut sound) {
            return Err(Refusal::InvalidParameter);
        }
        if !self.budget.take(list.len()) {
            return Err(Refusal::BufferOverflow);
        }
        let more = list.iter().map(|entry| self.map(*entry)).collect::<Option<Vec<_>>>();
        let Some(pages) = more.and_then(|more| kept.with(more)) else {
            self.budget.give_back(list.len());
            return Err(Refusal::InvalidParameter);
        };
        shelf.put(pages);
        Ok(())
    }

    fn map(&self, entry: Entry) -> Option<(GrantRef, Arc<Page>)> {
        let write = entry.flags & READ_ONLY == 0;
        let page = self.grants.map_page(self.domain, entry.reference, write).ok()?;
        Some((entry.reference, Arc::new(page)))
    }

    /// Takes the pages of a list off a queue's shelf, and tells in the list which were on it. From
    /// now on no burst finds them.
    fn remove(
        &self,
        (queue, at, count): (u32, GrantRef, u32),
        lists: &dyn Lists,
    ) -> Result<Vec<Arc<Page>>, Refusal> {
        let shelf = self.shelf(queue)?;
        let mut list = self.read(lists, at, count)?;
        let kept = shelf.get();
        let mut found = BTreeSet::new();
        for entry in &mut list {
            let is_first = kept.has(entry.reference) && found.insert(entry.reference);
            entry.status = if is_first { 0 } else { Refusal::InvalidParameter as u16 };
        }
        // Nothing has been done yet that a frontend might not hear of.
        if !list.is_empty() && !lists.write(at, &Entry::encode_all(&list)) {
            return Err(Refusal::InvalidParameter);
        }
        let references: Vec<GrantRef> = found.into_iter().collect();
        let (stay, gone) = kept.without(&references);
        shelf.put(stay);
        Ok(gone)
    }

    /// Whether an answer is owed.
    pub fn is_unsettled(&self) -> bool {
        self.leaving.is_some()
    }

    /// Unmaps pages that were taken off, as far as no burst that began before is still using them.
    /// The answer, when none is left.
    pub fn settle(&mut self) -> Option<Slot> {
        let Leaving { pages, answer } = self.leaving.as_mut()?;
        let before = pages.len();
        // Whoever had it in a set has let go of that, and nobody finds it any more.
        pages.retain_mut(|page| Arc::get_mut(page).is_none());
        self.budget.give_back(before - pages.len());
        let answer = pages.is_empty().then_some(*answer)?;
        self.leaving = None;
        Some(answer)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let leaving = self.leaving.as_ref().map_or(0, |leaving| leaving.pages.len());
        self.budget.give_back(self.size().0 + leaving);
    }
}

#[cfg(test)]
mod tests;
