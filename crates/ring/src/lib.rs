//! Shared-memory rings: split and packed virtqueues, and the memory they live in.
