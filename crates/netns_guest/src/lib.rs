//! A process as a guest of the embedded hypervisor: unmodified programs in a network namespace of
//! their own, behind a paravirtual interface.
//!
//! In the namespace is a TAP device with many queues. Frames that the kernel sends are read into
//! granted pages and sent over Xen rings; frames that the backend delivers are written to the
//! kernel directly from their pages. The guest's virtual CPUs are threads, each with its share of
//! the queues.
//!
//! The backend is not trusted: [`xen::netif::frontend`] checks the contents of the rings, and a
//! violation ends the connection.

#![forbid(unsafe_code)]

mod interface;
mod profiler;
mod program;
mod run;
mod tap_queue;
mod vcpu;

pub use run::{GuestConfig, GuestError, run};
