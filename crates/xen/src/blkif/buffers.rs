//! Room for the data of a queue's requests: a fixed number of pages, used in turn.
//!
//! Requests are answered in the order in which they were taken, so room is freed in the order of
//! allocation, and the part in use is contiguous, modulo the length. If nothing is in use,
//! allocation begins at the start again, so a queue that has one request at a time always uses the
//! same pages.

/// A piece of the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub at: u32,
    /// Bytes in use by the piece, and by the end of the room that was skipped before it.
    taken: u32,
}

/// Which part of the room is in use.
#[derive(Debug)]
pub struct Buffers {
    len: u32,
    /// The start of the next piece.
    next: u32,
    used: u32,
}

impl Buffers {
    /// Room for `len` bytes, none of which is in use.
    pub fn new(len: u32) -> Self {
        Buffers { len, next: 0, used: 0 }
    }

    /// Allocates `len` bytes in one piece. `None`: there is no room for them now.
    pub fn allocate(&mut self, len: u32) -> Option<Span> {
        if self.used == 0 {
            self.next = 0;
        }
        let tail = self.len - self.next;
        let (at, skipped) = if len > tail { (0, tail) } else { (self.next, 0) };
        let taken = len.checked_add(skipped).filter(|taken| *taken <= self.len - self.used)?;
        self.next = at + len;
        self.used += taken;
        Some(Span { at, taken })
    }

    /// Frees the oldest piece in use.
    pub fn free_oldest(&mut self, span: Span) {
        self.used = self.used.saturating_sub(span.taken);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_room_is_used_from_its_start() {
        let mut buffers = Buffers::new(10);
        for _ in 0..20 {
            let span = buffers.allocate(4).unwrap();
            assert_eq!(span.at, 0);
            buffers.free_oldest(span);
        }
        assert_eq!(buffers.allocate(11), None);
        assert_eq!(buffers.allocate(10).map(|span| span.at), Some(0));
        assert_eq!(buffers.allocate(1), None);
        assert_eq!(buffers.allocate(0).map(|span| span.taken), Some(0));
    }

    proptest! {
        #[test]
        fn pieces_do_not_overlap(steps in prop::collection::vec((0u32..=64, any::<bool>()), 0..500)) {
            let mut buffers = Buffers::new(64);
            let mut used: VecDeque<(Span, u32)> = VecDeque::new();
            for (len, free) in steps {
                if free {
                    if let Some((span, _)) = used.pop_front() {
                        buffers.free_oldest(span);
                    }
                    continue;
                }
                let Some(span) = buffers.allocate(len) else {
                    // A piece always fits when nothing is in use.
                    prop_assert!(!used.is_empty());
                    continue;
                };
                prop_assert!(span.at + len <= 64);
                for (other, their) in used.iter().filter(|(_, their)| *their > 0 && len > 0) {
                    prop_assert!(span.at + len <= other.at || other.at + their <= span.at);
                }
                used.push_back((span, len));
            }
        }
    }
}
