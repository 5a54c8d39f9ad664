//! Frames that lie with their sender until the frontend has fetched them: what is passed on to it,
//! and since which slots.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use hypervisor::{DomId, GrantRef, Granted, TransitiveGrants};
use ring::xen::BackRing;

/// References that a queue passes grants on under: as many as a ring can name at a time, since each
/// takes two slots.
const REFERENCES: usize = BackRing::<2>::SIZE as usize / 2;

/// A frame that is lent.
#[derive(Clone, Copy, Debug)]
struct PassedFrame {
    /// The number behind its last slot.
    end: u32,
    references: usize,
}

/// What one queue has lent.
#[derive(Debug)]
pub struct PassedGrants {
    transitive_grants: Arc<dyn TransitiveGrants>,
    to: DomId,
    free: Vec<GrantRef>,
    /// Oldest first.
    open: VecDeque<PassedFrame>,
    /// Theirs, in the same order; behind them those of the frame that is being lent.
    used: VecDeque<GrantRef>,
    /// How many of the latter.
    begun: usize,
}

impl PassedGrants {
    /// For a queue of domain `to`.
    ///
    /// # Errors
    /// When no references are left.
    pub fn new(
        transitive_grants: Arc<dyn TransitiveGrants>,
        to: DomId,
    ) -> io::Result<PassedGrants> {
        let (open, used) =
            (VecDeque::with_capacity(REFERENCES), VecDeque::with_capacity(REFERENCES));
        let mut passed_grants = PassedGrants {
            transitive_grants,
            to,
            free: Vec::with_capacity(REFERENCES),
            open,
            used,
            begun: 0,
        };
        for _ in 0..REFERENCES {
            passed_grants.free.push(passed_grants.transitive_grants.reserve()?);
        }
        Ok(passed_grants)
    }

    /// Whether so many more pieces can be lent.
    pub fn has_room(&self, pieces: usize) -> bool {
        self.free.len() >= pieces
    }

    /// Lends a piece; the reference for it. There must be room.
    pub fn lend(&mut self, from: Granted) -> GrantRef {
        let Some(reference) = self.free.pop() else { return GrantRef(0) };
        self.transitive_grants.grant(reference, self.to, from.domain, from.reference);
        self.used.push_back(reference);
        self.begun += 1;
        reference
    }

    /// The pieces that were lent last are a frame, whose slots end before number `end`.
    pub fn close(&mut self, end: u32) {
        self.open.push_back(PassedFrame { end, references: std::mem::take(&mut self.begun) });
    }

    /// How many frames, oldest first, are back now that requests up to number `posted` are there.
    pub fn returned(&mut self, posted: u32) -> usize {
        // A request lies in a slot again when it is a whole ring further on.
        let size = BackRing::<2>::SIZE;
        self.settle(|frame| posted.wrapping_sub(frame.end.wrapping_add(size)).cast_signed() >= 0)
    }

    /// Recalls everything; how many frames, oldest first, nobody fetches any more.
    pub fn recall(&mut self) -> usize {
        for reference in &self.used {
            self.transitive_grants.end_access(*reference);
        }
        self.settle(|_| true)
    }

    fn settle(&mut self, is_over: impl Fn(&PassedFrame) -> bool) -> usize {
        let mut count = 0;
        while let Some(frame) = self.open.front().copied().filter(&is_over) {
            // Somebody may still be fetching it, whatever was said.
            if !self
                .used
                .iter()
                .take(frame.references)
                .all(|reference| self.transitive_grants.end_access(*reference))
            {
                break;
            }
            self.free.extend(self.used.drain(..frame.references));
            self.open.pop_front();
            count += 1;
        }
        count
    }

    /// The number of the request with which about half of what is lent is back; `None`: nothing is
    /// lent.
    pub fn half(&self) -> Option<u32> {
        let frame = self.open.get(self.open.len() / 2)?;
        Some(frame.end.wrapping_add(BackRing::<2>::SIZE))
    }
}

impl Drop for PassedGrants {
    fn drop(&mut self) {
        for reference in self.free.iter().chain(&self.used) {
            self.transitive_grants.release(*reference);
        }
    }
}
