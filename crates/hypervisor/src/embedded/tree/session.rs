//! Operations of domains on nodes: in the tree itself, or in a transaction.

use std::collections::BTreeSet;

use super::{
    BYTES, Change, MESSAGE, NODES, Node, PERMISSIONS, Pending, Tree, above, below, children,
    invalid, prefix,
};
use crate::DomId;
use crate::store::{Access, Permission, StoreError};

/// A tree, or a transaction on it, while a domain works on it.
pub struct Session<'a> {
    tree: &'a mut Tree,
    pending: Option<&'a mut Pending>,
    by: DomId,
    /// Nodes that were looked at or changed.
    work: u64,
}

impl<'a> Session<'a> {
    /// A session of domain `by` on the tree, or on a transaction.
    pub fn new(tree: &'a mut Tree, pending: Option<&'a mut Pending>, by: DomId) -> Self {
        Session { tree, pending, by, work: 0 }
    }

    /// How many nodes were looked at or changed.
    pub fn work(&self) -> u64 {
        self.work
    }

    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, StoreError> {
        self.node(path, Access::reads).map(|node| node.value.clone())
    }

    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        self.node(path, Access::reads)?;
        let prefix = prefix(path);
        let pending = self.pending.as_deref();
        let is_there = |name: &str| {
            pending.is_none_or(|pending| pending.get(&format!("{prefix}{name}")).is_none())
        };
        let old = children(&self.tree.nodes, &prefix).map(|(name, _)| name);
        let mut names: BTreeSet<String> =
            old.filter(|name| is_there(name)).map(str::to_owned).collect();
        if let Some(pending) = pending {
            let new = children(pending.nodes(), &prefix).filter(|(_, node)| node.is_some());
            names.extend(new.map(|(name, _)| name.to_owned()));
        }
        self.work += names.len() as u64;
        Ok(names.into_iter().collect())
    }

    pub fn permissions(&mut self, path: &str) -> Result<Vec<Permission>, StoreError> {
        self.node(path, Access::reads).map(|node| node.permissions.clone())
    }

    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<Change, StoreError> {
        if path.len() + 1 + value.len() > MESSAGE {
            return Err(StoreError::TooLong { path: path.into() });
        }
        let is_there = self.is_there(path)?;
        if self.by != DomId(0) && value.len() > BYTES {
            return Err(StoreError::Quota { path: path.into() });
        }
        if !is_there {
            self.create(path)?;
        }
        self.change(path, |node| node.value = value.into())
    }

    /// Makes a node. Returns `None` when it exists already.
    pub fn make(&mut self, path: &str) -> Result<Option<Change>, StoreError> {
        if self.is_there(path)? {
            return Ok(None);
        }
        self.create(path)?;
        self.change(path, |_| ()).map(Some)
    }

    /// Removes a node. Returns `None` when there is no such node.
    pub fn remove(&mut self, path: &str) -> Result<Option<Change>, StoreError> {
        let parent = above(path).next().ok_or_else(|| invalid(path))?.to_owned();
        let node = self.node(path, Access::writes).map(|node| node.permissions.clone());
        let permissions = match node {
            Err(error) if error.is_not_found() && self.look(&parent)?.is_some() => return Ok(None),
            permissions => permissions?,
        };
        for path in self.below(path).iter().map(String::as_str).chain([path]) {
            self.put(path, None)?;
        }
        self.change(&parent, |_| ())?;
        Ok(Some(Change { path: path.into(), removed: true, permissions }))
    }

    pub fn set_permissions(
        &mut self,
        path: &str,
        permissions: &[Permission],
    ) -> Result<Change, StoreError> {
        let by = self.by;
        let owner = self.node(path, Access::writes)?.owner();
        let new_owner = permissions.first().ok_or_else(|| invalid(path))?.domain;
        if by != DomId(0) && (owner != Some(by) || new_owner != by) {
            return Err(StoreError::Denied { path: path.into() });
        }
        if by != DomId(0) && permissions.len() > PERMISSIONS {
            return Err(StoreError::Quota { path: path.into() });
        }
        self.change(path, |node| node.permissions = permissions.into())
    }

    fn look(&mut self, path: &str) -> Result<Option<&Node>, StoreError> {
        self.work += 1;
        let old = self.tree.nodes.get(path);
        let Some(pending) = self.pending.as_deref_mut() else { return Ok(old) };
        pending.see(self.by, path, old.map(|node| node.generation))?;
        Ok(pending.get(path).map_or(old, Option::as_ref))
    }

    /// The node, if it exists and `allows` says that the domain may access it.
    fn node(&mut self, path: &str, allows: fn(Access) -> bool) -> Result<&Node, StoreError> {
        let by = self.by;
        if self.look(path)?.is_none() {
            // Only a domain that may read the directory learns whether a node exists.
            let mut open = false;
            for above in above(path) {
                if let Some(node) = self.look(above)? {
                    open = node.allows(by, allows);
                    break;
                }
            }
            let path = path.into();
            return Err(match open {
                true => StoreError::NotFound { path },
                false => StoreError::Denied { path },
            });
        }
        let node = self.look(path)?.filter(|node| node.allows(by, allows));
        node.ok_or_else(|| StoreError::Denied { path: path.into() })
    }

    /// Whether there is a node, which the domain may write. If there is none, the domain may create
    /// one.
    fn is_there(&mut self, path: &str) -> Result<bool, StoreError> {
        match self.node(path, Access::writes) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a node and all missing ones above it, with the permissions of the nearest that
    /// exists.
    fn create(&mut self, path: &str) -> Result<(), StoreError> {
        let missing = || StoreError::NotFound { path: path.into() };
        let mut new = vec![path];
        for above in above(path) {
            if self.look(above)?.is_some() {
                break;
            }
            new.push(above);
        }
        let nearest = new.last().and_then(|path| above(path).next()).ok_or_else(missing)?;
        let mut permissions = self.look(nearest)?.ok_or_else(missing)?.permissions.clone();
        if self.by != DomId(0) {
            let more = self.pending.as_ref().map_or(0, |pending| pending.owned_more(self.by));
            let owned = self.tree.owned_by(self.by).saturating_add_signed(more);
            if owned + new.len() > NODES {
                return Err(StoreError::Quota { path: path.into() });
            }
            permissions.iter_mut().take(1).for_each(|owner| owner.domain = self.by);
        }
        self.change(nearest, |_| ())?;
        for path in new.into_iter().rev() {
            let permissions = permissions.clone();
            self.put(path, Some(Node { value: Vec::new(), permissions, generation: 0 }))?;
        }
        Ok(())
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut Node)) -> Result<Change, StoreError> {
        let missing = || StoreError::NotFound { path: path.into() };
        let mut node = self.look(path)?.ok_or_else(missing)?.clone();
        change(&mut node);
        let permissions = node.permissions.clone();
        self.put(path, Some(node))?;
        Ok(Change { path: path.into(), removed: false, permissions })
    }

    fn put(&mut self, path: &str, node: Option<Node>) -> Result<(), StoreError> {
        let before = self.look(path)?.and_then(Node::owner);
        match self.pending.as_deref_mut() {
            Some(pending) => pending.put(self.by, path, before, node)?,
            None => self.tree.put(path, node),
        }
        Ok(())
    }

    /// The paths below a path.
    fn below(&self, path: &str) -> BTreeSet<String> {
        let prefix = prefix(path);
        let pending = self.pending.as_deref();
        let is_there = |path: &String| pending.is_none_or(|pending| pending.get(path).is_none());
        let old = below(&self.tree.nodes, &prefix).map(|(path, _)| path);
        let mut all: BTreeSet<String> = old.filter(|path| is_there(path)).cloned().collect();
        if let Some(pending) = pending {
            let new = below(pending.nodes(), &prefix).filter(|(_, node)| node.is_some());
            all.extend(new.map(|(path, _)| path.clone()));
        }
        all
    }
}
