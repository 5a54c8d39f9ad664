//! Worker threads that serve queues, independent of what the queues carry.
//!
//! A [`Pipeline`] holds the queues of one worker: it fetches what a peer published and does what
//! has to be done with it. A [`Worker`] decides everything else: which queue is served next and how
//! much it may use ([`drr`]), how long to poll ([`poll`]), when queues are armed and how the thread
//! sleeps and is woken ([`doorbell`], [`watcher`]), and how a queue changes workers. The worker
//! calls the pipeline; the pipeline never calls the worker. Calls are dispatched statically.
//!
//! The control side has a [`Group`]: it starts the threads, sends them commands between bursts, and
//! publishes a topology that all of them follow. Two kinds of pipelines share their workers as a
//! [`Pair`]; the control side of each then reaches them through [`PipelineWorkers`].
//!
//! Invariants:
//!
//! - A queue belongs to one worker at a time. Ownership moves between two calls of
//!   [`Pipeline::serve`], never within one.
//! - A worker does not sleep while work or mail is left for it: a sender rings the worker's
//!   doorbell after it has left something, and a worker announces its sleep and then looks once
//!   more. Loom models of both are in [`doorbell`] and [`poll`].
//! - Nothing that a peer does makes a worker block: descriptors are watched edge-triggered and
//!   never read, and each wait has an end or a signal.

#![forbid(unsafe_code)]

pub mod balance;
pub mod coalescing;
mod control;
pub mod counter;
pub mod doorbell;
pub mod drr;
pub mod fault_meter;
pub mod group;
pub mod histogram;
mod id;
mod mailbox;
pub mod manual;
pub mod migration;
pub mod pair;
pub mod pending_interrupts;
pub mod pipeline;
pub mod pipeline_workers;
pub mod poll;
pub mod publish;
mod queues;
mod run_counters;
mod sleep;
mod sleeper;
pub mod slow_signals;
pub mod stolen;
mod thread_usage;
pub mod time_share;
pub mod token_bucket;
pub mod watcher;
mod worker;

pub use counter::Counter;
pub use doorbell::Doorbell;
pub use group::Group;
pub use histogram::Histogram;
pub use id::{ClassId, QueueId};
pub use manual::ManualWorker;
pub use pair::Pair;
pub use pending_interrupts::PendingInterrupts;
pub use pipeline::{Attached, Blocked, Departure, Pipeline, Served, Status, Waits};
pub use pipeline_workers::PipelineWorkers;
pub use run_counters::RunCounters;
pub use slow_signals::SlowSignals;
pub use thread_usage::ThreadUsage;
pub use worker::Worker;

#[cfg(test)]
mod tests;
