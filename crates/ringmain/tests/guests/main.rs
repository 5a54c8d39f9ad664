//! Stock Linux guests under QEMU, attached to a daemon of the test's own.
//!
//! These tests need root, `scripts/deps guests` and a quarter of a minute each, so plain `cargo
//! test` leaves them out and `make test` runs them, two at a time. None of them measures: a slow
//! machine makes them slow, not red.

mod disk;
mod disk_migration;
mod forgetful;
mod lab;
mod life;
mod memory;
mod migration;
mod noise;
mod offloads;
mod pair;
mod pool;
mod power_loss;
mod releases;
mod restart;
mod tap;
mod traffic;
mod variants;
