//! Virtual CPUs: each thread that calls the hypervisor runs on one, usually on one of its own.
//!
//! State that Xen keeps per CPU, so that CPUs need not share it, is kept here by this number. The
//! first threads get a number each, as long as they live. Further threads share number 0, one at a
//! time.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Virtual CPUs of the process.
pub const VCPUS: usize = 64;

/// The one that threads share.
const SHARED: usize = 0;

static TAKEN: Mutex<u64> = Mutex::new(1 << SHARED);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const _: () = assert!(VCPUS == u64::BITS as usize);

/// A virtual CPU that the calling thread has to itself, as long as this lives.
#[derive(Debug)]
pub struct Vcpu {
    number: usize,
    _alone: Option<MutexGuard<'static, ()>>,
}

impl Vcpu {
    /// The one that the calling thread runs on. A thread may hold one only at a time.
    pub fn enter() -> Vcpu {
        // A thread that is ending has no number any more.
        let number = OWN.try_with(|own| own.0).unwrap_or(SHARED);
        let alone = || ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Vcpu { number, _alone: (number == SHARED).then(alone) }
    }

    /// Its number, below [`VCPUS`].
    #[inline]
    pub fn number(&self) -> usize {
        self.number
    }
}

/// A thread's number.
struct Own(usize);

impl Own {
    fn new() -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken.trailing_ones() as usize;
        if free >= VCPUS {
            return Own(SHARED);
        }
        *taken |= 1 << free;
        Own(free)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.0 != SHARED {
            *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.0);
        }
    }
}

thread_local! {
    static OWN: Own = Own::new();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn each_thread_has_its_own_number_while_they_last() {
        let all = Barrier::new(100);
        let seen: Mutex<Vec<usize>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let number = Vcpu::enter().number();
                    seen.lock().unwrap().push(number);
                    all.wait();
                });
            }
        });
        let seen = seen.into_inner().unwrap();
        let own: Vec<_> = seen.iter().filter(|number| **number != SHARED).collect();
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), own.len());
        // Other tests run at the same time.
        assert!((VCPUS / 2..VCPUS).contains(&own.len()), "{} of their own", own.len());
        let first = Vcpu::enter().number();
        assert_eq!(Vcpu::enter().number(), first);
    }
}
