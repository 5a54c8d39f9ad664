//! A transaction: the nodes that it has looked at, and its changes so far.

use std::collections::BTreeMap;

use super::{Change, Node};
use crate::DomId;
use crate::store::StoreError;

/// Most nodes that one transaction of an unprivileged domain looks at or changes.
const NODES: usize = 1024;

/// Most bytes of their paths, and of the values that it writes.
const BYTES: usize = 256 << 10;

/// A transaction.
#[derive(Debug)]
pub struct Pending {
    /// The tree's generation when it began.
    start: u64,
    /// Nodes that it has changed; `None`: removed.
    nodes: BTreeMap<String, Option<Node>>,
    /// Paths that it has looked at, and the generation that a node there had at the first time.
    seen: BTreeMap<String, Option<u64>>,
    /// Bytes of those paths and of written values.
    bytes: usize,
    /// How many more nodes each domain owns.
    owned: BTreeMap<DomId, isize>,
    /// Changes by path and whether they remove it, each once, with the number of the last such
    /// change.
    changes: BTreeMap<(String, bool), (usize, Change)>,
    /// How many changes there were.
    count: usize,
    /// An operation was refused, so the transaction is not complete.
    refused: bool,
}

impl Pending {
    /// A transaction that begins at this generation of the tree.
    pub(super) fn new(start: u64) -> Self {
        Pending {
            start,
            nodes: BTreeMap::new(),
            seen: BTreeMap::new(),
            bytes: 0,
            owned: BTreeMap::new(),
            changes: BTreeMap::new(),
            count: 0,
            refused: false,
        }
    }

    /// Notes that domain `by` looks at a path, whose node in the tree has this generation.
    pub(super) fn see(
        &mut self,
        by: DomId,
        path: &str,
        generation: Option<u64>,
    ) -> Result<(), StoreError> {
        if self.seen.contains_key(path) {
            return Ok(());
        }
        self.take_room(by, path, path.len(), 1)?;
        self.seen.insert(path.into(), generation);
        Ok(())
    }

    /// The transaction's own node at a path. `None`: the tree's node.
    pub(super) fn get(&self, path: &str) -> Option<&Option<Node>> {
        self.nodes.get(path)
    }

    /// All that it has changed.
    pub(super) fn nodes(&self) -> &BTreeMap<String, Option<Node>> {
        &self.nodes
    }

    /// Replaces a node, which belonged to `before`; `None`: removes it.
    pub(super) fn put(
        &mut self,
        by: DomId,
        path: &str,
        before: Option<DomId>,
        node: Option<Node>,
    ) -> Result<(), StoreError> {
        let written = node.as_ref().map_or(0, |node| node.value.len());
        let replaced = self.nodes.get(path).and_then(Option::as_ref);
        self.bytes -= replaced.map_or(0, |node| node.value.len());
        self.take_room(by, path, written, 0)?;
        if let Some(owner) = before {
            *self.owned.entry(owner).or_default() -= 1;
        }
        if let Some(owner) = node.as_ref().and_then(Node::owner) {
            *self.owned.entry(owner).or_default() += 1;
        }
        self.nodes.insert(path.into(), node);
        Ok(())
    }

    fn take_room(
        &mut self,
        by: DomId,
        path: &str,
        bytes: usize,
        nodes: usize,
    ) -> Result<(), StoreError> {
        let is_full = self.seen.len() + nodes > NODES || self.bytes + bytes > BYTES;
        self.refused |= by != DomId(0) && is_full;
        if self.refused {
            return Err(StoreError::Quota { path: path.into() });
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Notes a change, to be reported when the transaction is committed.
    pub fn note(&mut self, change: Change) {
        self.count += 1;
        self.changes.insert((change.path.clone(), change.removed), (self.count, change));
    }

    /// The changes in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        let mut changes: Vec<_> = std::mem::take(&mut self.changes).into_values().collect();
        changes.sort_unstable_by_key(|(count, _)| *count);
        changes.into_iter().map(|(_, change)| change).collect()
    }

    /// How many nodes a commit looks at.
    pub fn len(&self) -> u64 {
        self.seen.len() as u64
    }

    /// Whether anything that it has looked at was changed since it began.
    pub(super) fn overtaken(&self, now: impl Fn(&str) -> Option<u64>) -> bool {
        let changed = |(path, seen): (&String, &Option<u64>)| {
            seen.is_some_and(|seen| seen > self.start) || now(path) != *seen
        };
        self.seen.iter().any(changed)
    }

    /// Whether something was refused.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// How many more nodes a domain owns.
    pub(super) fn owned_more(&self, domain: DomId) -> isize {
        self.owned.get(&domain).copied().unwrap_or(0)
    }

    pub(super) fn into_nodes(self) -> BTreeMap<String, Option<Node>> {
        self.nodes
    }
}
