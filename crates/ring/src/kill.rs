//! A simulated kill of the process: from then on, no store takes effect.

use std::cell::Cell;

thread_local! {
    static STORES_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Lets this thread's devices live for `stores` more stores.
pub(crate) fn after(stores: u64) {
    STORES_LEFT.set(stores);
}

/// Whether the device lives for one more store.
pub(crate) fn survives() -> bool {
    let left = STORES_LEFT.get();
    STORES_LEFT.set(left.saturating_sub(1));
    left > 0
}

/// Whether the device would live for one more store.
pub(crate) fn survives_now() -> bool {
    STORES_LEFT.get() > 0
}
