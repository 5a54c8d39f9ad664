//! Names of queues and of the classes that share a worker.

/// One attachment of a queue to the workers. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u64);

impl QueueId {
    /// The id among the workers where pipelines `0` and `1` share them.
    pub(crate) fn of_pipeline(self, number: u64) -> QueueId {
        QueueId(self.0 << 1 | number)
    }
}

/// Queues that share one portion of their worker: those of one port, or of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u32);
