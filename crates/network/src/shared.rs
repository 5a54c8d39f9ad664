//! What workers and the control side have in common: commands, the published topology, the switch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use frame::Headers;
use switch::{PortId, Switch, Verdict};

use crate::port::QueuePair;
use crate::slot::Attachment;
use crate::stage_profiler::Sampling;
use crate::topology::{Published, QueueId, Topology};
use crate::wake::Doorbell;

/// Something that a worker is asked to do, between bursts.
pub enum Command {
    /// Take this queue pair.
    Attach(Box<Attachment>),
    /// Give this queue pair back, once nothing of it is under way.
    Detach(QueueId, Sender<Box<dyn QueuePair>>),
    /// ManualWorker this queue pair over, to go to another worker. All senders wait for it.
    HandOver(QueueId, Sender<Box<Attachment>>),
    /// End.
    Stop,
}

/// Commands for one worker.
#[derive(Default)]
pub struct Mailbox {
    full: AtomicBool,
    commands: Mutex<Vec<Command>>,
}

impl Mailbox {
    /// Leaves a command; the worker's doorbell is to be rung afterwards.
    pub fn post(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.full.store(true, Ordering::Release);
    }

    /// Whether there is a command.
    pub fn has_mail(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes all commands, oldest first.
    pub fn take(&self) -> Vec<Command> {
        self.full.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What all workers, and the control side, see.
pub struct Shared {
    /// Where the ports' queues are.
    pub topology: Published<Topology>,
    /// Decides where frames go. Workers ask it only when their caches don't know.
    pub switch: Mutex<Switch>,
    /// Commands, one box a worker.
    pub mailboxes: Vec<Mailbox>,
    /// Wakes a worker.
    pub doorbells: Vec<Doorbell>,
    /// The topology that each worker goes by.
    pub obeyed: Vec<AtomicU64>,
    /// Whether anybody profiles.
    pub sampling: Sampling,
    /// The last request to profile that each worker has answered.
    pub sampled: Vec<AtomicU64>,
    /// When seconds began to be counted.
    pub start: Instant,
}

impl Shared {
    /// Whole seconds since the start, from 1.
    pub fn seconds(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.start).as_secs() as u32 + 1
    }

    /// What the switch says of a frame.
    #[cold]
    pub fn ask(&self, now: u32, ingress: PortId, headers: &Headers) -> Verdict {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner).decide(now, ingress, headers)
    }
}
