//! A list that grows while others read it without locks.

use std::sync::OnceLock;

/// Parts behind the first one: each is as long as all parts before it.
const PARTS: usize = 32;

/// A list that grows. Nothing in it moves.
#[derive(Debug)]
pub(super) struct GrowingList<T> {
    first: Box<[T]>,
    more: [OnceLock<Box<[T]>>; PARTS],
}

impl<T: Default> GrowingList<T> {
    /// A list of `len` entries at least.
    pub fn new(len: usize) -> GrowingList<T> {
        GrowingList { first: entries(len.max(1)), more: [const { OnceLock::new() }; PARTS] }
    }

    /// The part that has an entry, and the place there. `None`: the first part.
    fn part(&self, index: usize) -> Option<(usize, usize)> {
        let part = (index / self.first.len()).checked_ilog2()?;
        Some((part as usize, index - (self.first.len() << part)))
    }

    /// An entry, if the list is so long.
    pub fn get(&self, index: usize) -> Option<&T> {
        if let Some(entry) = self.first.get(index) {
            return Some(entry);
        }
        let (part, within) = self.part(index)?;
        self.more.get(part)?.get()?.get(within)
    }

    /// Makes the list `len` entries long at least.
    pub fn grow(&self, len: usize) {
        let Some((last, _)) = len.checked_sub(1).and_then(|index| self.part(index)) else { return };
        for (number, part) in self.more.iter().enumerate().take(last + 1) {
            part.get_or_init(|| entries(self.first.len() << number));
        }
    }
}

fn entries<T: Default>(len: usize) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(len).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn entries_stay_when_a_list_grows() {
        for first in [0, 1, 3, 64] {
            let list: GrowingList<AtomicU64> = GrowingList::new(first);
            let mut len = first.max(1);
            for more in [1, 2, 5, 100, 1000] {
                (0..len).for_each(|at| list.get(at).unwrap().store(at as u64, Ordering::Relaxed));
                list.grow(len + more);
                let same = |at: usize| list.get(at).unwrap().load(Ordering::Relaxed) == at as u64;
                assert!((0..len).all(same), "{first}, {len}");
                assert!((len..len + more).all(|at| list.get(at).is_some()));
                len += more;
            }
            assert!(list.get(usize::MAX).is_none());
        }
    }
}
