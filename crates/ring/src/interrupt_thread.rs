//! A thread that sends interrupts on behalf of workers.
//!
//! The kernel wakes an interrupted guest's CPU on the time of the thread that writes the eventfd:
//! a microsecond or two, and more on a virtual machine. Where the host has a CPU to spare, one
//! thread on this CPU writes for all workers. A worker only puts the [`Target`] into its queue.
//!
//! - The thread polls while interrupts are frequent, and sleeps otherwise. To wake the thread would
//!   cost a worker as much as to write itself. So a worker writes itself while the thread sleeps,
//!   and wakes the thread once interrupts become frequent.
//! - A target is in the queue at most once. The thread marks the target as not queued before it
//!   writes, so whatever a worker published before a later attempt is covered by that write, or
//!   the target is queued again. A queue is bounded; a worker that finds it full writes itself.
//! - The thread learns of a peer that blocks its writes or makes them slow, as a worker would (see
//!   [`crate::interrupt`]). It leaves the result with the target, and the worker takes it at its
//!   next interrupt of that peer. While the thread is busy with a slow peer, or has lost its CPU,
//!   workers write themselves: only interrupts that are queued by then are delayed.
//! - A worker and the thread agree on who is asleep as publishers and consumers of rings do
//!   (see [`state`]).

#[cfg(all(test, loom))]
mod models;
#[cfg(not(all(test, loom)))]
mod queue;
mod queued;
#[cfg(not(all(test, loom)))]
mod shared;
mod state;
#[cfg(not(all(test, loom)))]
mod target;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(all(test, loom)))]
mod thread;

#[cfg(not(all(test, loom)))]
pub use {queue::InterruptQueue, queue::interrupt, target::Target, thread::InterruptThread};
