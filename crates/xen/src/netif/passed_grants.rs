//! Frames whose bytes stay with their sender until the frontend has copied them: the transitive
//! grants (`GTF_transitive`) by which they are passed, and the slots that name these grants.
//!
//! A frontend could keep frames for ever, so the caller revokes all grants after a time. A
//! reference is not used again before both are true:
//!
//! - The hypervisor says that the grant is not in use.
//! - The frontend is done with the slots that name it. A frontend whose frames were revoked may
//!   still have such slots before it. If the reference stood for another frame by then, the
//!   frontend would take that frame's bytes for those of the first one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use hypervisor::{DomId, GrantRef, Granted, TransitiveGrants};
use ring::xen::BackRing;

/// References of a queue: as many as a ring can name at a time, since each takes two slots.
const REFERENCES: usize = BackRing::<2>::SIZE as usize / 2;

/// A frame that is outstanding.
#[derive(Clone, Copy, Debug)]
struct PassedFrame {
    /// The index after the frame's last slot.
    end: u32,
    references: usize,
}

/// The grants that one queue has passed on.
#[derive(Debug)]
pub struct PassedGrants {
    transitive_grants: Arc<dyn TransitiveGrants>,
    to: DomId,
    free: Vec<GrantRef>,
    /// Oldest first.
    open: VecDeque<PassedFrame>,
    /// The references of these frames, in the same order, and after them those of the frame that is
    /// being passed.
    used: VecDeque<GrantRef>,
    /// The number of references of the frame that is being passed.
    begun: usize,
    /// Frames that were revoked, and whose slots the frontend may not have looked at yet. Oldest
    /// first.
    revoked: VecDeque<PassedFrame>,
    /// The references of these frames, in the same order.
    retired: VecDeque<GrantRef>,
}

impl PassedFrame {
    /// Whether the frontend is done with the frame, now that requests up to index `posted` are
    /// published. A request lies in a slot again when it is a whole ring further on.
    fn is_over(&self, posted: u32) -> bool {
        posted.wrapping_sub(self.end.wrapping_add(BackRing::<2>::SIZE)).cast_signed() >= 0
    }
}

impl PassedGrants {
    /// For a queue of domain `to`.
    ///
    /// # Errors
    /// When the grant table is full.
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
            revoked: VecDeque::new(),
            retired: VecDeque::new(),
        };
        for _ in 0..REFERENCES {
            passed_grants.free.push(passed_grants.transitive_grants.reserve()?);
        }
        Ok(passed_grants)
    }

    /// Whether references of revoked frames wait for the frontend.
    pub fn has_retired(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Frees the references of revoked frames that the frontend is done with, now that requests up
    /// to index `posted` are published.
    pub fn free_retired(&mut self, posted: u32) {
        while let Some(frame) = self.revoked.front().filter(|frame| frame.is_over(posted)) {
            self.free.extend(self.retired.drain(..frame.references));
            self.revoked.pop_front();
        }
    }

    /// Whether `pieces` more pieces can be passed.
    pub fn has_room(&self, pieces: usize) -> bool {
        self.free.len() >= pieces
    }

    /// Passes a piece on, and returns the reference for it. There must be room.
    pub fn pass(&mut self, from: Granted) -> GrantRef {
        let Some(reference) = self.free.pop() else { return GrantRef(0) };
        self.transitive_grants.grant(reference, self.to, from.domain, from.reference);
        self.used.push_back(reference);
        self.begun += 1;
        reference
    }

    /// Declares the pieces that were passed last a frame, whose slots end before index `end`.
    pub fn close(&mut self, end: u32) {
        self.open.push_back(PassedFrame { end, references: std::mem::take(&mut self.begun) });
    }

    /// Releases the frames whose slots hold requests again, now that requests up to index `posted`
    /// are published. Returns their number; the oldest are released first.
    pub fn released(&mut self, posted: u32) -> usize {
        let mut count = 0;
        while let Some(frame) = self.end_oldest(|frame| frame.is_over(posted)) {
            self.free.extend(self.used.drain(..frame.references));
            count += 1;
        }
        count
    }

    /// Revokes all grants. Returns how many of the oldest frames are not in use any more.
    pub fn revoke(&mut self) -> usize {
        for reference in &self.used {
            self.transitive_grants.end_access(*reference);
        }
        let mut count = 0;
        while let Some(frame) = self.end_oldest(|_| true) {
            self.retired.extend(self.used.drain(..frame.references));
            self.revoked.push_back(frame);
            count += 1;
        }
        count
    }

    /// Takes out the oldest frame if it is over and nobody is copying it, whatever the ring says.
    fn end_oldest(&mut self, is_over: impl Fn(&PassedFrame) -> bool) -> Option<PassedFrame> {
        let frame = self.open.front().copied().filter(is_over)?;
        let mut references = self.used.iter().take(frame.references);
        let ended = references.all(|reference| self.transitive_grants.end_access(*reference));
        if ended { self.open.pop_front() } else { None }
    }

    /// The index of the request with which about half of the outstanding frames are released;
    /// `None` when none is outstanding.
    pub fn half(&self) -> Option<u32> {
        let frame = self.open.get(self.open.len() / 2)?;
        Some(frame.end.wrapping_add(BackRing::<2>::SIZE))
    }
}

impl Drop for PassedGrants {
    fn drop(&mut self) {
        for reference in self.free.iter().chain(&self.used).chain(&self.retired) {
            self.transitive_grants.release(*reference);
        }
    }
}

#[cfg(test)]
mod tests;
