//! State that a worker shares with the control side: commands, the published topology, doorbells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use crate::doorbell::Doorbell;
use crate::id::QueueId;
use crate::mailbox::Mailbox;
use crate::pipeline::Pipeline;
use crate::publish::Published;

/// Something that a worker does between two bursts.
pub(crate) enum Command<P: Pipeline> {
    /// Takes this queue.
    Attach(QueueId, P::Queue),
    /// Gives this queue back, once nothing of it is under way.
    Detach(QueueId, Sender<P::Queue>),
    /// Gives this queue to another worker. All senders wait for it.
    Migrate(QueueId, Sender<P::Queue>),
    /// Gives this queue back for another process. All senders wait for it.
    Withdraw(QueueId, Sender<P::Queue>),
    /// Hands this to the pipeline.
    Request(P::Request),
    /// Confirms that the worker has reached this command.
    Answer(Sender<()>),
    /// Ends.
    Stop,
}

/// State that all workers and the control side see.
pub(crate) struct Shared<P: Pipeline> {
    /// The topology that workers are to follow.
    pub topology: Published<P::Topology>,
    /// Commands, one box a worker.
    pub mailboxes: Vec<Mailbox<Command<P>>>,
    /// One a worker.
    pub doorbells: Arc<[Doorbell]>,
    /// The version of the topology that each worker follows.
    pub followed: Vec<AtomicU64>,
}

/// One worker's end of the control side.
pub(crate) struct ControlLink<P: Pipeline> {
    own: usize,
    shared: Arc<Shared<P>>,
    topology: Arc<P::Topology>,
    seen: u64,
}

impl<P: Pipeline> ControlLink<P> {
    pub fn new(own: usize, shared: Arc<Shared<P>>) -> Self {
        ControlLink { own, shared, topology: Arc::default(), seen: 0 }
    }

    /// The worker's own doorbell.
    pub fn doorbell(&self) -> &Doorbell {
        &self.shared.doorbells[self.own]
    }

    /// Whether the control side has left something.
    pub fn has_mail(&self) -> bool {
        self.shared.mailboxes[self.own].has_mail() || self.shared.topology.is_newer(self.seen)
    }

    /// Takes note of a newer topology. True when there is one.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        match self.shared.topology.newer(&mut self.seen) {
            Some(topology) => {
                self.topology = topology;
                true
            }
            None => false,
        }
    }

    /// The topology to follow.
    pub fn topology(&self) -> &P::Topology {
        &self.topology
    }

    /// Commands, oldest first; `None`: there are none.
    #[inline]
    pub fn commands(&self) -> Option<Vec<Command<P>>> {
        let mailbox = &self.shared.mailboxes[self.own];
        mailbox.has_mail().then(|| mailbox.take())
    }

    /// Acknowledges that the worker follows the topology.
    pub fn acknowledge(&self) {
        self.shared.followed[self.own].store(self.seen, Ordering::Release);
    }
}
