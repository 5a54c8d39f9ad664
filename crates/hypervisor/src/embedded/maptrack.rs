//! Allocation of handles of mappings: lists of free handles, in three generations ([`Maptrack`]).
//!
//! A handle is an index into a table that grows by [`CHUNK`] handles at a time, up to a limit.
//! Links between free handles are kept in the table, as in Xen. A handle belongs to a virtual CPU
//! and returns to the list of that virtual CPU, whichever virtual CPU frees it.

use super::config::Maptrack;
use super::sync::{AtomicU32, Mutex, Ordering, lock};

/// Handles by which the table grows.
#[cfg(not(all(test, loom)))]
pub const CHUNK: u32 = 64;
#[cfg(all(test, loom))]
pub const CHUNK: u32 = 3;

/// No handle.
const NONE: u32 = u32::MAX;

/// Free handles.
#[derive(Debug)]
pub struct HandleTable {
    entries: Box<[Entry]>,
    /// Handles that were ever in a list.
    grown: Mutex<u32>,
    lists: Lists,
}

#[derive(Debug)]
struct Entry {
    /// The next free one.
    next: AtomicU32,
    /// The virtual CPU to whose list the handle returns.
    owner: AtomicU32,
}

#[derive(Debug)]
enum Lists {
    Single(Mutex<u32>),
    PerVcpu(Box<[Queue]>),
    Stealing(Box<[Stack]>),
}

/// A queue into which all virtual CPUs put handles, and from which only its own virtual CPU takes
/// them. The queue always keeps one entry, because a new entry is linked to the last one.
#[derive(Debug)]
#[repr(align(128))]
struct Queue {
    /// Its own virtual CPU's.
    head: AtomicU32,
    tail: AtomicU32,
}

#[derive(Debug)]
#[repr(align(128))]
struct Stack {
    head: Mutex<u32>,
}

impl HandleTable {
    /// A table of at most `limit` handles, for `vcpus` virtual CPUs.
    pub fn new(generation: Maptrack, limit: u32, vcpus: usize) -> Self {
        let entry = |_| Entry { next: AtomicU32::new(NONE), owner: AtomicU32::new(0) };
        let queue = |_| Queue { head: AtomicU32::new(NONE), tail: AtomicU32::new(NONE) };
        let lists = match generation {
            Maptrack::Single => Lists::Single(Mutex::new(NONE)),
            Maptrack::PerVcpu => Lists::PerVcpu((0..vcpus).map(queue).collect()),
            Maptrack::Stealing => {
                Lists::Stealing((0..vcpus).map(|_| Stack { head: Mutex::new(NONE) }).collect())
            }
        };
        HandleTable { entries: (0..limit).map(entry).collect(), grown: Mutex::new(0), lists }
    }

    /// Allocates a handle for virtual CPU `vcpu`, which only the caller uses at this time. `None`:
    /// no handle is free, or none that this virtual CPU may take.
    pub fn get(&self, vcpu: usize) -> Option<u32> {
        match &self.lists {
            Lists::Single(head) => self.pop(head).or_else(|| self.grow_into(head, 0)),
            Lists::PerVcpu(queues) => {
                let queue = queues.get(vcpu)?;
                self.dequeue(queue).or_else(|| {
                    let fresh = self.grow()?;
                    fresh.for_each(|handle| self.put_owned(handle, vcpu));
                    self.dequeue(queue)
                })
            }
            Lists::Stealing(stacks) => {
                let own = &stacks.get(vcpu)?.head;
                self.pop(own)
                    .or_else(|| self.grow_into(own, vcpu))
                    .or_else(|| self.steal(stacks, vcpu))
            }
        }
    }

    /// Puts a handle back that is in use.
    pub fn put(&self, handle: u32) {
        let Some(entry) = self.entry(handle) else { return };
        // The owner of a handle that is in use does not change.
        let owner = entry.owner.load(Ordering::Relaxed) as usize;
        match &self.lists {
            Lists::Single(head) => self.push(head, handle),
            Lists::PerVcpu(_) => self.put_owned(handle, owner),
            Lists::Stealing(stacks) => {
                if let Some(stack) = stacks.get(owner) {
                    self.push(&stack.head, handle);
                }
            }
        }
    }

    fn entry(&self, handle: u32) -> Option<&Entry> {
        self.entries.get(handle as usize)
    }

    /// Handles that were never used, if the table can grow.
    fn grow(&self) -> Option<std::ops::Range<u32>> {
        let mut grown = lock(&self.grown);
        let end = (*grown + CHUNK).min(self.entries.len() as u32);
        let fresh = std::mem::replace(&mut *grown, end)..end;
        (!fresh.is_empty()).then_some(fresh)
    }

    /// Takes one of those that were never used, and pushes the others.
    fn grow_into(&self, head: &Mutex<u32>, vcpu: usize) -> Option<u32> {
        let mut fresh = self.grow()?;
        let first = fresh.next();
        for handle in fresh.rev().chain(first) {
            self.entry(handle)?.owner.store(vcpu as u32, Ordering::Relaxed);
            if Some(handle) != first {
                self.push(head, handle);
            }
        }
        first
    }

    fn pop(&self, head: &Mutex<u32>) -> Option<u32> {
        let mut head = lock(head);
        let handle = *head;
        *head = self.entry(handle)?.next.load(Ordering::Relaxed);
        Some(handle)
    }

    fn push(&self, head: &Mutex<u32>, handle: u32) {
        let mut head = lock(head);
        if let Some(entry) = self.entry(handle) {
            entry.next.store(*head, Ordering::Relaxed);
            *head = handle;
        }
    }

    /// Steals a handle of another virtual CPU. The handle changes its owner for good, so that a
    /// virtual CPU that often needs more handles does not have to steal each time.
    fn steal(&self, stacks: &[Stack], vcpu: usize) -> Option<u32> {
        let others = (1..stacks.len()).map(|n| (vcpu + n) % stacks.len());
        let stolen = others.filter_map(|other| self.pop(&stacks.get(other)?.head)).next()?;
        self.entry(stolen)?.owner.store(vcpu as u32, Ordering::Relaxed);
        Some(stolen)
    }

    /// Takes the first handle of the virtual CPU's own queue, unless it is the last one there.
    fn dequeue(&self, queue: &Queue) -> Option<u32> {
        let first = queue.head.load(Ordering::Acquire);
        let next = self.entry(first)?.next.load(Ordering::Acquire);
        if next == NONE {
            return None;
        }
        queue.head.store(next, Ordering::Relaxed);
        Some(first)
    }

    /// Puts a handle at the end of the queue of virtual CPU `owner`.
    fn put_owned(&self, handle: u32, owner: usize) {
        let Lists::PerVcpu(queues) = &self.lists else { return };
        let (Some(queue), Some(entry)) = (queues.get(owner), self.entry(handle)) else { return };
        entry.owner.store(owner as u32, Ordering::Relaxed);
        entry.next.store(NONE, Ordering::Relaxed);
        let last = queue.tail.swap(handle, Ordering::AcqRel);
        match self.entry(last) {
            Some(last) => last.next.store(handle, Ordering::Release),
            // The first of all; only its own virtual CPU puts that.
            None => queue.head.store(handle, Ordering::Release),
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Marks handles that are in use; each may be marked once at a time.
    struct Used(Vec<AtomicU32>);

    impl Used {
        fn take(&self, handle: Option<u32>) -> Option<u32> {
            let before = self.0[handle? as usize].swap(1, Ordering::AcqRel);
            assert_eq!(before, 0, "one handle for two mappings");
            handle
        }

        fn free(&self, handle: u32) {
            self.0[handle as usize].store(0, Ordering::Release);
        }
    }

    /// Two virtual CPUs that take handles at the same time; the second puts back one of the first.
    fn model(
        generation: Maptrack,
        get: impl Fn(&HandleTable, usize) -> Option<u32> + Copy + Send + Sync + 'static,
    ) {
        loom::model(move || {
            let handles = HandleTable::new(generation, 3, 2);
            let used = Used((0..3).map(|_| AtomicU32::new(0)).collect());
            let first = used.take(handles.get(0)).unwrap();
            let shared = Arc::new((handles, used));
            let other = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (handles, used) = &*shared;
                    used.free(first);
                    handles.put(first);
                    used.take(get(handles, 1));
                })
            };
            let (handles, used) = &*shared;
            if let Some(handle) = used.take(get(handles, 0)) {
                used.free(handle);
                handles.put(handle);
            }
            used.take(get(handles, 0));
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_single() {
        model(Maptrack::Single, HandleTable::get);
    }

    #[test]
    fn loom_per_vcpu() {
        model(Maptrack::PerVcpu, HandleTable::get);
    }

    #[test]
    fn loom_stealing() {
        model(Maptrack::Stealing, HandleTable::get);
    }

    /// As published with the queues per virtual CPU, and in Xen 4.6 to 4.9 (XSA-228): a virtual CPU
    /// that steals takes from another's queue without a lock, as its owner does. Both may take the
    /// same handle.
    #[test]
    #[should_panic(expected = "one handle for two mappings")]
    fn loom_stealing_from_a_queue_is_a_race() {
        model(Maptrack::PerVcpu, |handles, vcpu| {
            let Lists::PerVcpu(queues) = &handles.lists else { return None };
            handles.get(vcpu).or_else(|| {
                let stolen = handles.dequeue(&queues[1 - vcpu])?;
                handles.entry(stolen)?.owner.store(vcpu as u32, Ordering::Relaxed);
                Some(stolen)
            })
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ALL: [Maptrack; 3] = [Maptrack::Single, Maptrack::PerVcpu, Maptrack::Stealing];

    #[test]
    fn no_handle_is_lost_or_given_twice() {
        for generation in ALL {
            let handles = HandleTable::new(generation, 1000, 4);
            let mut first = HashSet::new();
            while let Some(handle) = handles.get(1) {
                assert!(first.insert(handle), "{generation:?}");
            }
            // A queue keeps one handle.
            let kept = usize::from(generation == Maptrack::PerVcpu);
            assert_eq!(first.len(), 1000 - kept, "{generation:?}");
            first.iter().for_each(|handle| handles.put(*handle));
            let again: HashSet<u32> = std::iter::from_fn(|| handles.get(1)).collect();
            assert_eq!(again.len(), 1000 - kept, "{generation:?}");
        }
    }

    #[test]
    fn an_empty_list_steals_where_possible() {
        for generation in ALL {
            let handles = HandleTable::new(generation, 100, 2);
            let mine: Vec<u32> = std::iter::from_fn(|| handles.get(0)).collect();
            assert_eq!(handles.get(1), None);
            mine.iter().for_each(|handle| handles.put(*handle));
            assert_eq!(handles.get(1).is_some(), generation != Maptrack::PerVcpu, "{generation:?}");
        }
    }

    #[test]
    fn many_threads() {
        for generation in ALL {
            let handles = HandleTable::new(generation, 600, 4);
            let used: Vec<AtomicU32> = (0..600).map(|_| AtomicU32::new(0)).collect();
            std::thread::scope(|scope| {
                for vcpu in 0..4 {
                    let (handles, used) = (&handles, &used);
                    scope.spawn(move || {
                        for round in 0..2000 {
                            let taken: Vec<u32> =
                                (0..round % 100).map_while(|_| handles.get(vcpu)).collect();
                            for handle in &taken {
                                assert_eq!(
                                    used[*handle as usize].swap(1, Ordering::AcqRel),
                                    0,
                                    "{generation:?}"
                                );
                            }
                            for handle in taken {
                                used[handle as usize].store(0, Ordering::Release);
                                handles.put(handle);
                            }
                        }
                    });
                }
            });
        }
    }
}
