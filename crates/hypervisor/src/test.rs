//! The hypervisor for tests.
