use proptest::prelude::*;

use super::*;

#[test]
fn an_index_passes_an_event_once() {
    assert!(passes(5, 6, 5));
    assert!(!passes(6, 6, 5));
    assert!(!passes(4, 6, 5));
    assert!(passes(0xffff, 0, 0xffff));
    assert!(passes(0xffff, 3, 0xfff0));
    assert!(!passes(0xffef, 3, 0xfff0));
    assert!(!passes(5, 5, 5));
}

/// Descriptor number `number`, free-running, as a place in a ring of `size`.
fn place(number: u32, size: u16) -> Place {
    let (pass, index) = (number / u32::from(size), number % u32::from(size));
    Place { index: index as u16, wrap: pass.is_multiple_of(2) }
}

proptest! {
    #[test]
    fn places_count_on_and_back(size in 1u16..=32768, from in any::<u16>(), n in any::<u16>()) {
        let (number, n) = (u32::from(from), n % (size + 1));
        let at = place(number, size);
        prop_assert_eq!(Place::from_word(at.to_word()), at);
        prop_assert_eq!(at.forward(n, size), place(number + u32::from(n), size));
        prop_assert_eq!(at.forward(n, size).back(n, size), at);
    }

    /// A descriptor event notifies exactly when its descriptor is among those published.
    #[test]
    fn descriptor_events_count_once(size in 1u16..300, from in 0u32..2000, n in 1u16..300, event in 0u32..600) {
        let n = (n - 1) % size + 1;
        // Anywhere from one pass over the ring before to one after what is published.
        let event = (from + event % (2 * u32::from(size))).saturating_sub(u32::from(size));
        let next = place(from + u32::from(n), size);
        let suppression = u32::from(place(event, size).to_word()) | 2 << 16;
        let among = (from..from + u32::from(n)).contains(&event);
        // Two passes on, the same word names another descriptor.
        prop_assert_eq!(wants_packed(suppression, next, n, size, true), among);
        prop_assert!(wants_packed(suppression, next, n, size, false));
        prop_assert!(!wants_packed(1 << 16, next, n, size, true));
        prop_assert!(wants_packed(0, next, n, size, true));
    }
}
