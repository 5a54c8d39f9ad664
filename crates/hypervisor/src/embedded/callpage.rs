//! Hypercalls of a guest that is another process: through a shared page and an event channel. The
//! guest writes a list of copies and increments the number of calls made. The hypervisor reads each
//! number once, runs the copies, and increments the number of calls answered. All fields are 32-bit
//! numbers in the machine's byte order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ring::Memory;
use ring::copies::Status;

use super::local_hypercalls::BATCH;
use crate::hypercall::CopyOp;
use crate::{DomId, GrantRef, Granted, PAGE};

/// Offsets of the words: calls made, calls answered, number of copies in the last call.
const ASKED: u64 = 0;
const ANSWERED: u64 = 4;
const COUNT: u64 = 8;
/// Offset of the first copy, and bytes of each: four words, and one for its status.
const COPIES: u64 = 64;
const COPY: u64 = 20;

const _: () = assert!(COPIES as usize + BATCH * COPY as usize <= PAGE);

/// A page through which a guest makes its calls.
#[derive(Debug)]
pub struct CallPage {
    memory: Arc<Memory>,
    at: u64,
}

impl CallPage {
    /// The page at address `at` of the guest's memory, which is there.
    pub fn new(memory: &Arc<Memory>, at: u64) -> CallPage {
        CallPage { memory: Arc::clone(memory), at }
    }

    fn word(&self, at: u64) -> Option<&AtomicU32> {
        self.memory.atomic_u32(self.at + at).ok()
    }

    fn get(&self, at: u64) -> u32 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set(&self, at: u64, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// Makes a call of at most [`BATCH`] copies, and returns the call's number.
    pub fn ask(&self, copies: &[CopyOp]) -> u32 {
        for (n, pull) in (0..).zip(copies) {
            let from = u32::from(pull.from.domain.0) | u32::from(pull.from.offset) << 16;
            let words = [
                pull.from.reference.0,
                from,
                pull.page,
                u32::from(pull.offset) | u32::from(pull.len) << 16,
            ];
            for (word, value) in (0..).zip(words) {
                self.set(COPIES + n * COPY + word * 4, value);
            }
        }
        self.set(COUNT, copies.len() as u32);
        let number = self.get(ASKED).wrapping_add(1);
        self.set(ASKED, number);
        number
    }

    /// Whether a call was answered.
    pub fn is_answered(&self, number: u32) -> bool {
        self.get(ANSWERED) == number
    }

    /// The status of the `n`th copy of a call that was answered.
    pub fn outcome(&self, n: usize) -> Status {
        Status(self.get(COPIES + n as u64 * COPY + 16) as i16)
    }

    /// The number of a call that was not answered, if there is one.
    pub fn asked(&self) -> Option<u32> {
        let number = self.get(ASKED);
        (number != self.get(ANSWERED)).then_some(number)
    }

    /// The copies of that call, each read once.
    pub fn copies(&self) -> impl Iterator<Item = CopyOp> {
        let count = self.get(COUNT).min(BATCH as u32);
        (0..u64::from(count)).map(|n| {
            let [reference, from, page, to] =
                [0, 4, 8, 12].map(|word| self.get(COPIES + n * COPY + word));
            let from = Granted {
                domain: DomId(from as u16),
                reference: GrantRef(reference),
                offset: (from >> 16) as u16,
            };
            CopyOp { from, page, offset: to as u16, len: (to >> 16) as u16 }
        })
    }

    /// Answers a call.
    pub fn answer(&self, number: u32, outcomes: &[Status]) {
        for (n, outcome) in (0..).zip(outcomes) {
            self.set(COPIES + n * COPY + 16, u32::from(outcome.0 as u16));
        }
        self.set(ANSWERED, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_understood() {
        let memory = Arc::new(Memory::anonymous(PAGE).unwrap());
        let (guest, host) = (CallPage::new(&memory, 0), CallPage::new(&memory, 0));
        assert_eq!(host.asked(), None);
        let from = Granted { domain: DomId(7), reference: GrantRef(0x12345678), offset: 0x9abc };
        let copies: Vec<CopyOp> = (0..BATCH as u32)
            .map(|n| CopyOp { from, page: n, offset: n as u16, len: 0xfff0 + n as u16 % 10 })
            .collect();
        for round in 1..4 {
            assert_eq!(guest.ask(&copies), round);
            assert_eq!(host.asked(), Some(round));
            assert_eq!(host.copies().collect::<Vec<_>>(), copies);
            assert!(!guest.is_answered(round));
            let outcomes: Vec<Status> = (0..BATCH as i16).map(|n| Status(-n)).collect();
            host.answer(round, &outcomes);
            assert!(guest.is_answered(round) && host.asked().is_none());
            assert!((0..BATCH).all(|n| guest.outcome(n) == outcomes[n]));
        }
        // Copies beyond the end of the page do not exist.
        guest.set(COUNT, u32::MAX);
        assert_eq!(host.copies().count(), BATCH);
    }
}
