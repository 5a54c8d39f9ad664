//! The front half of a Xen ring: see [`xen`](crate::xen) for the back half and the layout of a
//! ring.
//!
//! A front-end trusts its back-end with its frames, but not with its memory safety: an impossible
//! index is a [`Violation::ResponseJump`], and slots are copied out once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::notify;
use crate::region::Memory;
use crate::violation::Violation;
use crate::xen::{REQ_EVENT, REQ_PROD, RING_PAGE, RSP_EVENT, RSP_PROD, SLOTS, ring_size};

/// The front half of a ring whose slots are `WORDS` words of four bytes.
#[derive(Debug)]
pub struct FrontRing<const WORDS: usize> {
    mem: Arc<Memory>,
    /// The address of its page.
    addr: u64,
    /// Requests written, and those that the back may see.
    produced: u32,
    published: u32,
    /// Responses taken, and the response index when it was last read.
    consumed: u32,
    seen: u32,
}

impl<const WORDS: usize> FrontRing<WORDS> {
    /// How many slots it has.
    pub const SIZE: u32 = ring_size(WORDS * 4);

    /// A new ring in the page at address `addr` of `mem`.
    ///
    /// # Errors
    /// When the page does not lie within `mem`.
    pub fn new(mem: Arc<Memory>, addr: u64) -> Result<Self, Violation> {
        mem.host(addr, RING_PAGE as u64, align_of::<u32>() as u64)?;
        let ring = Self { mem, addr, produced: 0, published: 0, consumed: 0, seen: 0 };
        for (at, value) in [(REQ_PROD, 0), (RSP_PROD, 0), (REQ_EVENT, 1), (RSP_EVENT, 1)] {
            ring.word(at)?.store(value, Ordering::SeqCst);
        }
        Ok(ring)
    }

    /// Slots for which no request is under way.
    #[inline]
    pub fn free(&self) -> u32 {
        Self::SIZE - self.produced.wrapping_sub(self.consumed)
    }

    /// Number of the next request.
    #[inline]
    pub fn upcoming(&self) -> u32 {
        self.produced
    }

    /// Requests whose responses were not taken yet.
    #[inline]
    pub fn under_way(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed)
    }

    /// Writes a request; the back sees it after [`publish`](Self::publish). Returns its number, or
    /// `None` when no slot is free.
    ///
    /// # Errors
    /// Never, while the page is there.
    #[inline]
    pub fn push(&mut self, request: [u32; WORDS]) -> Result<Option<u32>, Violation> {
        if self.free() == 0 {
            return Ok(None);
        }
        let (number, slot) = (self.produced, Self::slot(self.produced));
        for (n, value) in (0..).zip(request) {
            self.word(slot + 4 * n)?.store(value, Ordering::Relaxed);
        }
        self.produced = self.produced.wrapping_add(1);
        Ok(Some(number))
    }

    /// Publishes all requests written since the last call. Returns whether the back wants to be
    /// notified.
    ///
    /// # Errors
    /// Never, while the page is there.
    #[inline]
    pub fn publish(&mut self) -> Result<bool, Violation> {
        if self.produced == self.published {
            return Ok(false);
        }
        let old = std::mem::replace(&mut self.published, self.produced);
        Ok(notify::publish_ring(self.word(REQ_PROD)?, self.produced, old, self.word(REQ_EVENT)?))
    }

    /// Responses that can be taken; the back's index is read only when none is known.
    ///
    /// # Errors
    /// [`Violation::ResponseJump`].
    #[inline]
    pub fn ready(&mut self) -> Result<u32, Violation> {
        if self.seen == self.consumed {
            let index = self.word(RSP_PROD)?.load(Ordering::Acquire);
            self.saw(index)?;
        }
        Ok(self.seen.wrapping_sub(self.consumed))
    }

    fn saw(&mut self, index: u32) -> Result<(), Violation> {
        let ahead = index.wrapping_sub(self.consumed);
        if ahead > self.published.wrapping_sub(self.consumed)
            || ahead < self.seen.wrapping_sub(self.consumed)
        {
            return Err(Violation::ResponseJump { index, ahead, size: Self::SIZE });
        }
        self.seen = index;
        Ok(())
    }

    /// Copies the `n`th response from the next one on out of the ring. The result is valid only for
    /// `n` below [`ready`](Self::ready).
    ///
    /// # Errors
    /// Never, while the page is there.
    #[inline]
    pub fn response(&self, n: u32) -> Result<[u32; WORDS], Violation> {
        let slot = Self::slot(self.consumed.wrapping_add(n));
        let mut words = [0; WORDS];
        for (n, word) in (0..).zip(&mut words) {
            *word = self.word(slot + 4 * n)?.load(Ordering::Relaxed);
        }
        Ok(words)
    }

    /// Number of the next response.
    #[inline]
    pub fn position(&self) -> u32 {
        self.consumed
    }

    /// Takes the next `n` responses, at most as many as are ready.
    #[inline]
    pub fn take(&mut self, n: u32) {
        self.consumed = self.consumed.wrapping_add(n.min(self.seen.wrapping_sub(self.consumed)));
    }

    /// Asks the back to notify when there are `more` responses beyond those taken, and then reads
    /// its index once more. Returns how many responses can be taken now.
    ///
    /// # Errors
    /// [`Violation::ResponseJump`].
    pub fn arm(&mut self, more: u32) -> Result<u32, Violation> {
        let next = self.consumed.wrapping_add(more.max(1) - 1);
        let index = notify::arm_ring(self.word(RSP_EVENT)?, next, self.word(RSP_PROD)?);
        self.saw(index)?;
        Ok(self.seen.wrapping_sub(self.consumed))
    }

    /// The address of slot `number`, modulo the size.
    #[inline(always)]
    fn slot(number: u32) -> u64 {
        SLOTS + u64::from(number % Self::SIZE) * 4 * WORDS as u64
    }

    #[inline(always)]
    fn word(&self, offset: u64) -> Result<&AtomicU32, Violation> {
        self.mem.atomic_u32(self.addr + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xen::BackRing;

    fn ends() -> (FrontRing<3>, BackRing<3>) {
        let mem = Arc::new(Memory::anonymous(RING_PAGE).unwrap());
        (FrontRing::new(mem.clone(), 0).unwrap(), BackRing::attach(mem, 0).unwrap())
    }

    #[test]
    fn requests_go_and_responses_come() {
        let (mut front, mut back) = ends();
        assert_eq!(back.arm().unwrap(), 0);
        for round in 0..1000u32 {
            for n in 0..round % 7 {
                assert_eq!(
                    front.push([round, n, 7]).unwrap(),
                    Some(front.upcoming().wrapping_sub(1))
                );
            }
            assert_eq!(front.publish().unwrap(), !round.is_multiple_of(7), "armed, so told");
            assert_eq!(back.ready(1).unwrap(), round % 7);
            for n in 0..round % 7 {
                assert_eq!(back.request(0), [round, n, 7]);
                back.take(1);
                back.respond([n, round, 9]);
            }
            assert_eq!(front.arm(1).unwrap(), 0);
            assert_eq!(back.publish(), (!round.is_multiple_of(7)).then_some(true));
            assert_eq!(back.arm().unwrap(), 0);
            assert_eq!(front.ready().unwrap(), round % 7);
            for n in 0..round % 7 {
                assert_eq!(front.response(n).unwrap(), [n, round, 9]);
            }
            front.take(round % 7);
            assert_eq!(front.free(), 256);
        }
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (mut front, mut back) = ends();
        while front.push([1; 3]).unwrap().is_some() {}
        assert_eq!((front.upcoming(), front.free()), (256, 0));
        front.publish().unwrap();
        assert_eq!(back.ready(1).unwrap(), 256);
    }

    #[test]
    fn a_response_index_that_cant_be() {
        for index in [4, 1000, u32::MAX] {
            let (mut front, _) = ends();
            front.push([0; 3]).unwrap();
            front.push([0; 3]).unwrap();
            front.publish().unwrap();
            front.word(RSP_PROD).unwrap().store(index, Ordering::Relaxed);
            assert_eq!(
                front.ready(),
                Err(Violation::ResponseJump { index, ahead: index, size: 256 })
            );
        }
    }

    #[test]
    fn told_as_late_as_was_asked_for() {
        let (mut front, mut back) = ends();
        (0..20).for_each(|_| _ = front.push([0; 3]).unwrap());
        front.publish().unwrap();
        front.arm(10).unwrap();
        back.ready(20).unwrap();
        for n in 1..=20 {
            back.take(1);
            back.respond([0; 3]);
            assert_eq!(back.publish(), Some(n == 10), "{n}");
        }
    }
}
