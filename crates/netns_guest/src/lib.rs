//! A process as a guest of the embedded hypervisor: unmodified programs in a network namespace of
//! their own, behind a paravirtual interface.
//!
//! Inside is a TAP device of many queues. What the kernel puts into it is read into granted pages,
//! and goes over Xen rings to the backend; what comes from there is written to the kernel out of
//! the pages that it came in. The guest's virtual CPUs are threads, each with its share of the
//! queues.

#![forbid(unsafe_code)]

mod interface;
mod lane;
mod profiler;
mod program;
mod run;
mod vcpu;

pub use run::{GuestConfig, GuestError, run};
