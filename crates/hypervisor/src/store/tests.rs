use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::test::Machine;

/// Waits until `done`; fails when it never is.
pub fn eventually(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_transaction_that_is_always_overtaken_gives_up() {
    let machine = Machine::new();
    let store = machine.hypervisor(DomId(0)).store;
    let tries = AtomicU32::new(0);
    let outcome = transaction(&*store, |inside| {
        inside.find("/x")?;
        store.nodes().put("/x", tries.fetch_add(1, Ordering::Relaxed))
    });
    assert!(matches!(outcome, Err(StoreError::Again)));
    assert_eq!(tries.into_inner(), 100);
}

#[test]
fn a_long_value_is_quoted_in_part() {
    let machine = Machine::new();
    let store = machine.hypervisor(DomId(0)).store;
    store.nodes().write("/x", "ä".repeat(1000).as_bytes()).unwrap();
    let error = store.nodes().number::<u8>("/x").unwrap_err().to_string();
    assert_eq!(error, format!("/x: {:?} is not a number in range", "ä".repeat(64)));
    store.nodes().write("/x", b" 7\n").unwrap();
    assert_eq!(store.nodes().number::<u8>("/x").unwrap(), Some(7));
}

#[test]
fn changes_are_kept_once_until_they_are_taken() {
    let changes = Changes::new().unwrap();
    assert_eq!(changes.wait(Duration::ZERO), [0; 0]);
    for n in [3, 1, 3, 3] {
        changes.add(n);
    }
    assert_eq!(changes.wait(Duration::from_secs(30)), [1, 3]);
    assert_eq!(changes.take(), [0; 0]);
    let other = changes.clone();
    let adds = std::thread::spawn(move || other.add(9));
    assert_eq!(changes.wait(Duration::from_secs(30)), [9]);
    adds.join().unwrap();
}

proptest! {
    #[test]
    fn permissions_are_read_as_they_are_written(domain: u16, access in 0..4usize) {
        let access = [Access::None, Access::Read, Access::Write, Access::Both][access];
        let permission = Permission { domain: DomId(domain), access };
        prop_assert_eq!(permission.to_string().parse(), Ok(permission));
    }

    #[test]
    fn any_text_is_a_permission_or_not(text: String) {
        let _ = text.parse::<Permission>();
    }
}
