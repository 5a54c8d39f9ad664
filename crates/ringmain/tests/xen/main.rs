//! Ringmain in the dom0 of a real Xen host, serving the vifs and disks of stock Linux guests.
//!
//! The host runs under QEMU, without KVM. These tests need root, `scripts/deps guests xen` and some
//! minutes, so plain `cargo test` leaves them out and `make test` runs them, one after the other.
//! None of them measures: a slow machine makes them slow, not red.

mod another_emulator;
mod boot;
mod disk;
mod driver_domain;
mod exchange;
mod executable;
mod host;
mod hostile;
mod keys;
mod lifecycle;
mod pair;
mod plug;
mod restart;
mod settings;
mod suite;
#[path = "../guests/traffic.rs"]
mod traffic;
mod xenstored;
