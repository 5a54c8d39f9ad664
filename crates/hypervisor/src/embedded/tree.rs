//! The store's tree, with the rules of xenstored: permissions, their inheritance, and conflicts of
//! transactions.

use std::collections::{BTreeMap, BTreeSet};

use crate::DomId;
use crate::store::{Access, Permission, StoreError};

/// Longest absolute path.
const LONGEST: usize = 3072;

/// Most bytes of one message, and so of a path with its value.
const MESSAGE: usize = 4096;

/// Most nodes of one domain, and most bytes of one node, unless the domain is privileged.
const NODES: usize = 1000;
const BYTES: usize = 2048;

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
        self.permissions.first().map(|owner| owner.domain)
    }

    fn allows(&self, by: DomId, allows: fn(Access) -> bool) -> bool {
        let named = || {
            self.permissions
                .iter()
                .skip(1)
                .find(|entry| entry.domain == by)
                .or(self.permissions.first())
        };
        by == DomId(0)
            || self.owner() == Some(by)
            || named().is_some_and(|entry| allows(entry.access))
    }
}

/// A node that changed.
#[derive(Clone, Debug)]
pub struct Change {
    pub path: String,
    /// With all that was below.
    pub removed: bool,
    /// Who may know.
    permissions: Vec<Permission>,
}

impl Change {
    /// Whether `by` may know of it.
    pub fn shows_to(&self, by: DomId) -> bool {
        Node { value: Vec::new(), permissions: self.permissions.clone(), generation: 0 }
            .allows(by, Access::reads)
    }
}

/// The whole tree, by absolute path. The root is `/`.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    generation: u64,
    /// The paths that a transaction has read.
    seen: BTreeSet<String>,
}

impl Tree {
    pub fn new() -> Self {
        let permissions = vec![Permission { domain: DomId(0), access: Access::Read }];
        let root = Node { value: Vec::new(), permissions, generation: 0 };
        Self { nodes: BTreeMap::from([("/".into(), root)]), generation: 0, seen: BTreeSet::new() }
    }

    fn look(&mut self, path: &str) -> Option<&Node> {
        self.seen.insert(path.into());
        self.nodes.get(path)
    }

    /// The node, if it exists and `allows` says that `by` may access it.
    fn node(
        &mut self,
        by: DomId,
        path: &str,
        allows: fn(Access) -> bool,
    ) -> Result<&Node, StoreError> {
        if self.look(path).is_none() {
            // Only a domain that may read the directory learns whether a node exists.
            let above = above(path).find(|path| self.look(path).is_some());
            let open = above
                .and_then(|path| self.nodes.get(path))
                .is_some_and(|node| node.allows(by, allows));
            let path = path.into();
            return Err(if open {
                StoreError::NotFound { path }
            } else {
                StoreError::Denied { path }
            });
        }
        let node = self.nodes.get(path).filter(|node| node.allows(by, allows));
        node.ok_or_else(|| StoreError::Denied { path: path.into() })
    }

    pub fn read(&mut self, by: DomId, path: &str) -> Result<Vec<u8>, StoreError> {
        self.node(by, path, Access::reads).map(|node| node.value.clone())
    }

    pub fn directory(&mut self, by: DomId, path: &str) -> Result<Vec<String>, StoreError> {
        self.node(by, path, Access::reads)?;
        let prefix = prefix(path);
        let below = below(&self.nodes, &prefix).map(|path| path[prefix.len()..].to_owned());
        Ok(below.filter(|name| !name.contains('/') && !name.is_empty()).collect())
    }

    pub fn permissions(&mut self, by: DomId, path: &str) -> Result<Vec<Permission>, StoreError> {
        self.node(by, path, Access::reads).map(|node| node.permissions.clone())
    }

    pub fn write(&mut self, by: DomId, path: &str, value: &[u8]) -> Result<Change, StoreError> {
        if path.len() + 1 + value.len() > MESSAGE {
            return Err(StoreError::TooLong { path: path.into() });
        }
        match self.node(by, path, Access::writes) {
            Err(StoreError::NotFound { .. }) => self.create(by, path)?,
            node => _ = node?,
        }
        if by != DomId(0) && value.len() > BYTES {
            return Err(StoreError::Quota { path: path.into() });
        }
        self.change(path, |node| node.value = value.into())
    }

    /// `None` when the node exists already.
    pub fn make(&mut self, by: DomId, path: &str) -> Result<Option<Change>, StoreError> {
        match self.node(by, path, Access::writes) {
            Err(StoreError::NotFound { .. }) => self.create(by, path)?,
            node => return node.map(|_| None),
        }
        self.change(path, |_| ()).map(Some)
    }

    /// `None` when there is no such node.
    pub fn remove(&mut self, by: DomId, path: &str) -> Result<Option<Change>, StoreError> {
        let parent = above(path).next().ok_or_else(|| invalid(path))?.to_owned();
        let permissions = match self
            .node(by, path, Access::writes)
            .map(|node| node.permissions.clone())
        {
            Err(error) if error.is_not_found() && self.look(&parent).is_some() => return Ok(None),
            permissions => permissions?,
        };
        let gone: Vec<String> = below(&self.nodes, &prefix(path)).cloned().collect();
        for path in gone.iter().map(String::as_str).chain([path]) {
            self.seen.insert(path.into());
            self.nodes.remove(path);
        }
        self.change(&parent, |_| ())?;
        Ok(Some(Change { path: path.into(), removed: true, permissions }))
    }

    pub fn set_permissions(
        &mut self,
        by: DomId,
        path: &str,
        permissions: &[Permission],
    ) -> Result<Change, StoreError> {
        let owner = self.node(by, path, Access::writes)?.owner();
        let denied = || StoreError::Denied { path: path.into() };
        let new_owner = permissions.first().ok_or_else(|| invalid(path))?.domain;
        if by != DomId(0) && (owner != Some(by) || new_owner != by) {
            return Err(denied());
        }
        self.change(path, |node| node.permissions = permissions.into())
    }

    /// Creates a node and all missing ones above it, with the permissions of the nearest that
    /// exists.
    fn create(&mut self, by: DomId, path: &str) -> Result<(), StoreError> {
        let missing = || StoreError::NotFound { path: path.into() };
        let parent = above(path).next().ok_or_else(missing)?.to_owned();
        if self.look(&parent).is_none() {
            self.create(by, &parent)?;
        }
        let mut permissions = self.nodes.get(&parent).ok_or_else(missing)?.permissions.clone();
        if by != DomId(0) {
            let owned = self.nodes.values().filter(|node| node.owner() == Some(by)).count();
            if owned >= NODES {
                return Err(StoreError::Quota { path: path.into() });
            }
            permissions.iter_mut().take(1).for_each(|owner| owner.domain = by);
        }
        self.change(&parent, |_| ())?;
        self.nodes.insert(path.into(), Node { value: Vec::new(), permissions, generation: 0 });
        Ok(())
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut Node)) -> Result<Change, StoreError> {
        self.generation += 1;
        let generation = self.generation;
        let node =
            self.nodes.get_mut(path).ok_or_else(|| StoreError::NotFound { path: path.into() })?;
        change(node);
        node.generation = generation;
        self.seen.insert(path.into());
        Ok(Change { path: path.into(), removed: false, permissions: node.permissions.clone() })
    }

    /// Begins a transaction: no node has been read yet.
    pub fn begin(&self) -> Tree {
        Tree { seen: BTreeSet::new(), ..self.clone() }
    }

    /// Commits the transaction `changed`, which began with the tree `before`.
    ///
    /// # Errors
    /// [`StoreError::Again`] when a node that the transaction has read was changed since.
    pub fn commit(&mut self, before: &Tree, changed: &Tree) -> Result<(), StoreError> {
        let generation =
            |tree: &Tree, path: &String| tree.nodes.get(path).map(|node| node.generation);
        if changed.seen.iter().any(|path| generation(self, path) != generation(before, path)) {
            return Err(StoreError::Again);
        }
        for path in
            changed.seen.iter().filter(|path| generation(changed, path) != generation(before, path))
        {
            self.generation += 1;
            match changed.nodes.get(path) {
                Some(node) => {
                    _ = self
                        .nodes
                        .insert(path.clone(), Node { generation: self.generation, ..node.clone() })
                }
                None => _ = self.nodes.remove(path),
            }
        }
        Ok(())
    }

    /// Outside of transactions no reads are recorded.
    pub fn forget_seen(&mut self) {
        self.seen.clear();
    }
}

/// The prefix of every path below `path`.
pub fn prefix(path: &str) -> String {
    if path == "/" { "/".into() } else { format!("{path}/") }
}

fn below<'a>(
    nodes: &'a BTreeMap<String, Node>,
    prefix: &'a str,
) -> impl Iterator<Item = &'a String> {
    let all = nodes.range(prefix.to_owned()..).map(|(path, _)| path);
    all.take_while(move |path| path.starts_with(prefix))
}

/// The paths above `path`, nearest first.
fn above(path: &str) -> impl Iterator<Item = &str> {
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

/// `path` of `domain` as an absolute one, if it is one.
pub fn absolute(domain: DomId, path: &str) -> Result<String, StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_@".contains(&byte);
    let whole =
        if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", home(domain)) };
    let odd =
        whole.len() > LONGEST || whole.contains("//") || (whole.len() > 1 && whole.ends_with('/'));
    if odd || path.is_empty() || !whole.bytes().all(allowed) {
        Err(invalid(path))
    } else {
        Ok(whole)
    }
}

#[cfg(test)]
mod tests;
