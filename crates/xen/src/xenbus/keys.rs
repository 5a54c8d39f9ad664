//! Reading the keys of one directory, each checked as it is read.

use hypervisor::{GrantRef, Nodes, RemotePort, StoreError};
use thiserror::Error;

/// The reason why the keys of a frontend are not accepted, whatever the class of its device.
#[derive(Debug, Error)]
pub enum KeyError {
    /// A key is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A key has a value that is not valid, or the store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No queue is requested, or more than were offered.
    #[error("multi-queue-num-queues is {asked}, 1 to {offered} are possible")]
    Queues {
        /// Queues requested.
        asked: u32,
        /// Queues offered.
        offered: u16,
    },
    /// Two rings in one page.
    #[error("two rings in the page with grant reference {0}")]
    SameRing(GrantRef),
    /// Two uses of one event channel.
    #[error("event channel {} is named twice", .0.0)]
    SamePort(RemotePort),
}

/// The keys of one directory.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    nodes: &'a dyn Nodes,
    path: &'a str,
}

impl<'a> Keys<'a> {
    /// The keys of the directory `path`.
    pub fn new(nodes: &'a dyn Nodes, path: &'a str) -> Self {
        Keys { nodes, path }
    }

    /// A number; `None` when there is no such key.
    ///
    /// # Errors
    /// When the value is no number of 32 bits, or the store fails.
    pub fn number(&self, key: &str) -> Result<Option<u32>, StoreError> {
        self.nodes.number(&format!("{}/{key}", self.path))
    }

    /// A required number.
    ///
    /// # Errors
    /// As for [`number`](Self::number), and when there is no such key.
    pub fn require(&self, key: &str) -> Result<u32, KeyError> {
        self.number(key)?.ok_or_else(|| KeyError::Missing(format!("{}/{key}", self.path)))
    }

    /// A feature: a number other than zero. A key that is not there stands for zero.
    ///
    /// # Errors
    /// As for [`number`](Self::number).
    pub fn flag(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.number(key)?.is_some_and(|value| value != 0))
    }

    /// How many queues the frontend requests, of those that it was offered
    /// (`multi-queue-num-queues`).
    ///
    /// # Errors
    /// As for [`number`](Self::number), and when there are none, or more than were `offered`.
    pub fn queues(&self, offered: u16) -> Result<u16, KeyError> {
        let asked = self.number("multi-queue-num-queues")?.unwrap_or(1);
        match u16::try_from(asked) {
            Ok(queues) if (1..=offered).contains(&queues) => Ok(queues),
            _ => Err(KeyError::Queues { asked, offered }),
        }
    }

    /// The page of a ring.
    ///
    /// # Errors
    /// As for [`require`](Self::require).
    pub fn ring(&self, key: &str) -> Result<GrantRef, KeyError> {
        self.require(key).map(GrantRef)
    }

    /// The frontend's port of an event channel.
    ///
    /// # Errors
    /// As for [`require`](Self::require).
    pub fn port(&self, key: &str) -> Result<RemotePort, KeyError> {
        self.require(key).map(RemotePort)
    }
}

/// Checks that no page and no event channel serves twice: the writes of one ring would be requests
/// of the other.
///
/// # Errors
/// Which one does.
pub fn check_distinct(
    mut rings: Vec<GrantRef>,
    mut ports: Vec<RemotePort>,
) -> Result<(), KeyError> {
    match (first_duplicate(&mut rings), first_duplicate(&mut ports)) {
        (Some(ring), _) => Err(KeyError::SameRing(ring)),
        (_, Some(port)) => Err(KeyError::SamePort(port)),
        (None, None) => Ok(()),
    }
}

fn first_duplicate<T: Ord + Copy>(all: &mut [T]) -> Option<T> {
    all.sort_unstable();
    all.array_windows().find_map(|[a, b]| (a == b).then_some(*a))
}
