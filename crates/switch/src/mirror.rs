//! Mirrors: ports that get copies of other ports' frames, and nothing else.
//!
//! A mirror takes no part in switching, so that no copy can come back: no frame is flooded or
//! addressed to it, no station is learned on it, and frames that it sends are dropped. A frame
//! whose sender and receivers have the same mirror is copied there once. If the sender has the
//! mirror, the copy is the frame as it came in; otherwise the copy is the frame as its first
//! mirrored receiver gets it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use frame::TagEdit;

use crate::port_id::PortId;
use crate::verdict::Target;

/// The receivers of a flood, and its mirrors.
#[derive(Clone)]
pub(crate) struct FloodList {
    pub targets: Arc<[Target]>,
    pub mirrors: Option<Arc<[Target]>>,
}

/// Which ports are mirrored, and where.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mirrors {
    /// The mirror of each port that has one.
    pub of: BTreeMap<PortId, PortId>,
    /// All mirrors, including those that mirror no port at present.
    pub ports: BTreeSet<PortId>,
}

impl Mirrors {
    /// Whether the port is a mirror.
    pub(crate) fn has(&self, port: PortId) -> bool {
        self.ports.contains(&port)
    }

    /// The mirrors of a frame from `ingress` to `receivers`; `None`: it has none.
    pub(crate) fn copies<'a>(
        &self,
        ingress: PortId,
        receivers: impl IntoIterator<Item = &'a Target>,
    ) -> Option<Arc<[Target]>> {
        if self.of.is_empty() {
            return None;
        }
        let own = self.of.get(&ingress).map(|&port| Target { port, tag: TagEdit::Keep });
        let others = receivers.into_iter().filter_map(|receiver| {
            Some(Target { port: *self.of.get(&receiver.port)?, ..*receiver })
        });
        let (mut seen, mut copies) = (BTreeSet::new(), Vec::new());
        for copy in own.into_iter().chain(others).filter(|copy| self.has(copy.port)) {
            if seen.insert(copy.port) {
                copies.push(copy);
            }
        }
        (!copies.is_empty()).then(|| copies.into())
    }

    /// Forgets a removed port, whose number may be used again.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.of.retain(|mirrored, mirror| *mirrored != port && *mirror != port);
        self.ports.remove(&port);
    }
}
