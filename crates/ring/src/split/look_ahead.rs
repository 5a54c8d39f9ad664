//! Prefetching of requests that the driver has published and that were not taken yet.
//!
//! A request lies in several cache lines, which the driver's processor has just written: a
//! descriptor names an indirect table, which names the header. Without prefetching, a taker waits
//! for each of them in turn.

use super::DESC_INDIRECT;
use super::areas::Areas;
use super::position::Position;
use crate::copy::prefetch;
use crate::region::Memory;

/// How many requests ahead of the one that is taken an indirect table is prefetched.
const AHEAD: u16 = 8;

/// The requests that were looked at.
#[derive(Debug)]
pub(super) struct LookAhead {
    /// The next one to look at.
    next: Position,
}

impl LookAhead {
    pub(super) fn new(start: u16) -> Self {
        LookAhead { next: Position::of(start) }
    }

    /// Prefetches the indirect tables of the next requests from position `from` on, before `to`.
    /// `hint` is the number of the region to look in first. The taker reads heads and descriptors
    /// again, and checks them: what is read here is a hint.
    #[inline(always)]
    pub(super) fn prefetch(
        &mut self,
        areas: &Areas,
        memory: &Memory,
        hint: usize,
        from: u16,
        to: u16,
    ) {
        let known = to.wrapping_sub(from).min(AHEAD);
        let looked_at = self.next.get().wrapping_sub(from);
        for i in if looked_at > known { 0 } else { looked_at }..known {
            let desc = areas.desc(areas.head(areas.slot(from.wrapping_add(i))) & areas.mask());
            if desc.flags & DESC_INDIRECT != 0
                && let Some((table, _)) = memory.run(desc.addr, &mut { hint })
            {
                prefetch(table.as_ptr());
            }
        }
        self.next = Position::of(from.wrapping_add(known));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::RingConfig;

    const SIZE: u16 = 16;

    #[test]
    fn requests_are_looked_at_once_whatever_the_driver_wrote() {
        let memory = Arc::new(Memory::anonymous(1 << 16).unwrap());
        // Heads, flags and addresses that are all invalid.
        memory.write(0, &[0xff; 1 << 12]).unwrap();
        let config = RingConfig {
            size: SIZE,
            desc: 0,
            driver: 0x400,
            device: 0x800,
            event_idx: false,
            indirect: true,
            start: 0,
        };
        let areas = Areas::find(&memory, &config).unwrap();
        let start = u16::MAX - 2;
        let mut ahead = LookAhead::new(start);
        let mut look = |from: u16, to: u16| {
            let (from, to) = (start.wrapping_add(from), start.wrapping_add(to));
            ahead.prefetch(&areas, &memory, 7, from, to);
            ahead.next.get().wrapping_sub(start)
        };
        assert_eq!(look(0, 0), 0);
        assert_eq!(look(0, 3), 3);
        assert_eq!(look(0, SIZE), AHEAD);
        assert_eq!(look(1, SIZE), AHEAD + 1);
        assert_eq!(look(SIZE - 1, SIZE), SIZE, "not beyond what the driver has published");
        assert_eq!(look(3 * SIZE, 3 * SIZE + 2), 3 * SIZE + 2, "after requests taken unseen");
    }
}
