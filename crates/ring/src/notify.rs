//! When to notify: lost wake-ups are ruled out here, for both layouts and both sides.
