//! The ports of a fabric and their queues, as the control side keeps them.

use std::collections::BTreeMap;
use std::sync::Arc;

use runtime::QueueId;
use runtime::coalescing::CoalescingLimits;
use runtime::poll::PollingPolicy;
use switch::PortId;

use super::captures::Entry;
use crate::capture::MAX_CAPTURES;
use crate::count::QueueCounters;
use crate::port::QueuePair;
use crate::port_accounts::PortAccounts;
use crate::queue_selector::QueueSelector;
use crate::restrictions::RestrictionsCell;
use crate::slot::{Attachment, OnError};
use crate::topology::{PortView, QueueLocation, Topology};

/// A port.
pub(super) struct Port {
    pub name: Arc<str>,
    pub mtu: Option<u16>,
    pub selector: Option<Arc<dyn QueueSelector>>,
    pub on_error: OnError,
    pub coalescing: Option<CoalescingLimits>,
    pub policy: Option<PollingPolicy>,
    pub restrictions: Arc<RestrictionsCell>,
    pub counters: Vec<Arc<QueueCounters>>,
    pub accounts: PortAccounts,
    pub queues: BTreeMap<QueueId, Queue>,
}

/// An attached queue pair.
pub(super) struct Queue {
    pub index: u16,
    /// The worker that it was attached to at first.
    pub home: usize,
    pub worker: usize,
    /// The queue is migrating to another worker.
    pub moving: bool,
    pub receives: bool,
}

/// All ports.
#[derive(Default)]
pub(super) struct State {
    pub ports: BTreeMap<u16, Port>,
    pub next_queue: u64,
    /// Pairs are held back until all go to their workers together.
    pub holding: bool,
    /// Queue pairs that no worker has for that reason.
    pub withdrawn: BTreeMap<QueueId, Box<Attachment>>,
    /// By number.
    pub captures: [Option<Entry>; MAX_CAPTURES],
}

impl State {
    pub fn set_location(&mut self, queue: QueueId, worker: usize, moving: bool) {
        if let Some(entry) = self.queue(queue) {
            (entry.worker, entry.moving) = (worker, moving);
        }
    }

    /// A pair of a port on its way to a worker.
    pub fn attachment(
        &mut self,
        port: PortId,
        id: QueueId,
        index: u16,
        pair: Box<dyn QueuePair>,
    ) -> Option<Attachment> {
        let entry = self.ports.get_mut(&port.0)?;
        let at = usize::from(index);
        entry.counters.resize_with(entry.counters.len().max(at + 1), Arc::default);
        Some(Attachment {
            id,
            port,
            name: Arc::clone(&entry.name),
            index,
            pair,
            counters: Arc::clone(&entry.counters[at]),
            on_error: Arc::clone(&entry.on_error),
            coalescing: entry.coalescing,
            restrictions: Arc::clone(&entry.restrictions),
            failed: false,
            accounts: entry.accounts.clone(),
            policy: entry.policy,
        })
    }

    /// An attached pair.
    pub fn queue(&mut self, queue: QueueId) -> Option<&mut Queue> {
        self.ports.values_mut().find_map(|port| port.queues.get_mut(&queue))
    }

    /// The topology that the workers follow.
    pub fn topology(&self) -> Topology {
        let mut topology = Topology::default();
        for (&id, port) in &self.ports {
            let receiving = port.queues.iter().filter(|(_, queue)| queue.receives);
            let location = |(&queue, &Queue { index, worker, moving, .. }): (&QueueId, &Queue)| {
                QueueLocation { queue, index, worker, moving }
            };
            let mut receivers: Vec<QueueLocation> = receiving.map(location).collect();
            receivers.sort_by_key(|location| location.index);
            topology.ports.resize_with(usize::from(id) + 1, PortView::default);
            topology.ports[usize::from(id)] =
                PortView { receivers, mtu: port.mtu, selector: port.selector.clone() };
        }
        topology
    }
}
