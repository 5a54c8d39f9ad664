//! Locks and atomics: the standard library's, or loom's in the tests that try all interleavings.

#[cfg(all(test, loom))]
pub use loom::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence},
};
#[cfg(not(all(test, loom)))]
pub use std::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence},
};

use std::sync::PoisonError;

/// Locks a mutex. A poisoned mutex is locked as well: no panic leaves the data here half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock for reading.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock for writing.
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Lets other threads run, in a loop that waits for them.
pub fn pause(round: u32) {
    #[cfg(all(test, loom))]
    {
        let _ = round;
        loom::thread::yield_now();
    }
    #[cfg(not(all(test, loom)))]
    if round.is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
