//! The store's tree, with the rules of xenstored: permissions, their inheritance, quotas, and
//! conflicts of transactions.
//!
//! All domains see one [`Tree`]. A transaction records its changes so far and the nodes that it has
//! looked at ([`pending`]), without a copy of the tree. [`session`] has the operations on both.
//!
//! The tree is behind one lock, so no operation of a domain looks at the nodes of all others.

mod pending;
mod session;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::DomId;
use crate::store::{Access, Permission, StoreError};

pub use pending::Pending;
pub use session::Session;

/// Longest absolute path.
const LONGEST: usize = 3072;

/// Most names in a path. If a path is missing, each level above it is looked at, so the levels have
/// to be bounded.
const LEVELS: usize = 64;

/// Most bytes of one message, and so of a path with its value.
const MESSAGE: usize = 4096;

/// Most nodes of one domain, most bytes and most permissions of one node, unless the domain is
/// privileged.
const NODES: usize = 1000;
const BYTES: usize = 2048;
const PERMISSIONS: usize = 5;

/// One node.
#[derive(Clone, Debug)]
struct Node {
    value: Vec<u8>,
    permissions: Vec<Permission>,
    /// The generation of its last change. Adding or removing a child changes a node, too.
    generation: u64,
}

impl Node {
    fn owner(&self) -> Option<DomId> {
        owner(&self.permissions)
    }

    fn allows(&self, by: DomId, allows: fn(Access) -> bool) -> bool {
        permit(&self.permissions, by, allows)
    }
}

fn owner(permissions: &[Permission]) -> Option<DomId> {
    permissions.first().map(|owner| owner.domain)
}

fn permit(permissions: &[Permission], by: DomId, allows: fn(Access) -> bool) -> bool {
    let named = || permissions.iter().skip(1).find(|entry| entry.domain == by);
    by == DomId(0)
        || owner(permissions) == Some(by)
        || named().or(permissions.first()).is_some_and(|entry| allows(entry.access))
}

/// A node that changed.
#[derive(Clone, Debug)]
pub struct Change {
    pub path: String,
    /// The node was removed, with all nodes below it.
    pub removed: bool,
    /// The node's permissions, which determine the domains that are told.
    permissions: Vec<Permission>,
}

impl Change {
    /// Whether domain `by` may be told.
    pub fn shows_to(&self, by: DomId) -> bool {
        permit(&self.permissions, by, Access::reads)
    }
}

/// The whole tree, by absolute path. The root is `/`.
#[derive(Debug)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    generation: u64,
    /// How many nodes each domain owns.
    owned: HashMap<DomId, usize>,
}

impl Tree {
    pub fn new() -> Self {
        let permissions = vec![Permission { domain: DomId(0), access: Access::Read }];
        let mut tree = Self { nodes: BTreeMap::new(), generation: 0, owned: HashMap::new() };
        tree.put("/", Some(Node { value: Vec::new(), permissions, generation: 0 }));
        tree
    }

    /// Begins a transaction.
    pub fn begin(&self) -> Pending {
        Pending::new(self.generation)
    }

    /// Commits a transaction of domain `by`.
    ///
    /// # Errors
    /// [`StoreError::Again`] when a node that the transaction has looked at was changed
    /// since it began; [`StoreError::Quota`] when an operation was refused because of the
    /// transaction's size, or the domain would own too many nodes.
    pub fn commit(&mut self, by: DomId, pending: Pending) -> Result<(), StoreError> {
        if pending.overtaken(|path| self.generation_of(path)) {
            return Err(StoreError::Again);
        }
        let more = pending.owned_more(by);
        let room = NODES.saturating_sub(self.owned_by(by));
        if pending.is_refused() || (by != DomId(0) && more > 0 && more as usize > room) {
            return Err(StoreError::Quota { path: "a transaction".into() });
        }
        for (path, node) in pending.into_nodes() {
            self.put(&path, node);
        }
        Ok(())
    }

    /// How many nodes a domain owns.
    fn owned_by(&self, domain: DomId) -> usize {
        self.owned.get(&domain).copied().unwrap_or(0)
    }

    fn generation_of(&self, path: &str) -> Option<u64> {
        self.nodes.get(path).map(|node| node.generation)
    }

    /// Replaces the node at `path`; `None`: removes it.
    fn put(&mut self, path: &str, node: Option<Node>) {
        self.generation += 1;
        let generation = self.generation;
        let owner = node.as_ref().and_then(Node::owner);
        let before = match node {
            Some(node) => self.nodes.insert(path.into(), Node { generation, ..node }),
            None => self.nodes.remove(path),
        };
        if let Some(owner) = owner {
            *self.owned.entry(owner).or_default() += 1;
        }
        if let Some(owner) = before.and_then(|node| node.owner()) {
            let owned = self.owned.entry(owner).or_default();
            *owned = owned.saturating_sub(1);
            if *owned == 0 {
                self.owned.remove(&owner);
            }
        }
    }
}

/// The prefix of every path below `path`.
pub fn prefix(path: &str) -> String {
    if path == "/" { "/".into() } else { format!("{path}/") }
}

/// The nodes below a path with that prefix.
pub fn below<'a, T>(
    nodes: &'a BTreeMap<String, T>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a String, &'a T)> {
    nodes.range(prefix.to_owned()..).take_while(move |(path, _)| path.starts_with(prefix))
}

/// The nodes directly below a path with that prefix. Deeper nodes are skipped.
fn children<'a, T>(
    nodes: &'a BTreeMap<String, T>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a str, &'a T)> {
    let mut from = Excluded(prefix.to_owned());
    std::iter::from_fn(move || {
        loop {
            let range = (from.as_ref().map(String::as_str), Unbounded);
            let (path, node) = nodes.range::<str, _>(range).next()?;
            let name = path.strip_prefix(prefix)?;
            match name.find('/') {
                // The byte after the slash in order. No path has it there, and all nodes below sort
                // before it.
                Some(end) => from = Included(format!("{prefix}{}0", &name[..end])),
                None => {
                    from = Excluded(path.clone());
                    return Some((name, node));
                }
            }
        }
    })
}

/// The paths above `path`, nearest first.
pub fn above(path: &str) -> impl Iterator<Item = &str> {
    let parent = |path: &str| match path.rfind('/') {
        _ if path == "/" => None,
        Some(0) => Some(1),
        slash => slash,
    };
    std::iter::successors(Some(path), move |path| Some(&path[..parent(path)?])).skip(1)
}

fn invalid(path: &str) -> StoreError {
    StoreError::Refused { path: path.into(), name: "EINVAL".into() }
}

/// The directory of a domain, where its relative paths begin.
pub fn home(domain: DomId) -> String {
    format!("/local/domain/{domain}")
}

/// The absolute path for a `path` of `domain`.
pub fn absolute(domain: DomId, path: &str) -> Result<String, StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_@".contains(&byte);
    let whole =
        if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", home(domain)) };
    let odd =
        whole.len() > LONGEST || whole.contains("//") || (whole.len() > 1 && whole.ends_with('/'));
    let odd = odd || whole.bytes().filter(|byte| *byte == b'/').count() > LEVELS;
    if odd || path.is_empty() || !whole.bytes().all(allowed) {
        Err(invalid(path))
    } else {
        Ok(whole)
    }
}

#[cfg(test)]
mod tests;
