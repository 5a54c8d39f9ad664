//! The store of a host, and its domains' connections to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use super::sync::lock;
use super::tree::{Change, Tree, absolute, home, prefix};
use crate::DomId;
use crate::store::{
    Access, Ends, Nodes, OnChange, Permission, Store, StoreError, Transaction, Watch,
};

/// The store. Clones are the same store.
#[derive(Clone, Debug)]
pub struct SharedStore {
    tree: Arc<Mutex<Tree>>,
    watches: Arc<Mutex<Watches>>,
    /// Events to be delivered: the watch's number, and the path.
    events: Sender<(u64, String)>,
}

#[derive(Default)]
struct Watches {
    last: u64,
    list: BTreeMap<u64, RegisteredWatch>,
}

struct RegisteredWatch {
    by: DomId,
    /// Absolute.
    path: String,
    relative: bool,
    on_change: Arc<OnChange>,
    /// Paths of events that were not delivered yet. Each is queued once, however often the path
    /// changes meanwhile.
    pending: BTreeSet<String>,
}

/// Most paths that wait for delivery to one watch. Further changes are reported as one change of
/// the watched path.
const PENDING: usize = 64;

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.list.values().map(|watch| &watch.path)).finish()
    }
}

impl RegisteredWatch {
    /// The path of the event for `change`: the path that changed, or the watched path if a
    /// directory above it was removed.
    fn event_path(&self, change: &Change) -> Option<String> {
        let hit = change.path == self.path || change.path.starts_with(&prefix(&self.path));
        let path = match hit {
            true => &change.path,
            false if change.removed && self.path.starts_with(&prefix(&change.path)) => &self.path,
            false => return None,
        };
        change.shows_to(self.by).then(|| self.display_path(path))
    }

    /// Queues an event for `path`, or for the watched path if too many wait. `None`: such an event
    /// waits already.
    fn add_pending(&mut self, path: String) -> Option<String> {
        let path = if self.pending.len() < PENDING { path } else { self.display_path(&self.path) };
        self.pending.insert(path.clone()).then_some(path)
    }

    /// Relative, if the watch is.
    fn display_path(&self, path: &str) -> String {
        let relative = path.strip_prefix(&prefix(&home(self.by))).filter(|_| self.relative);
        relative.unwrap_or(path).to_owned()
    }
}

impl SharedStore {
    pub fn new() -> Self {
        let (events, queue) = mpsc::channel();
        let watches = Arc::new(Mutex::new(Watches::default()));
        let delivered = watches.clone();
        // It ends with the last clone of the sender.
        thread::spawn(move || deliver(&queue, &delivered));
        Self { tree: Arc::new(Mutex::new(Tree::new())), watches, events }
    }

    /// A domain comes.
    pub fn introduce(&self, domain: DomId) {
        let home = home(domain);
        let permissions = [(DomId(0), Access::None), (domain, Access::Read)];
        let permissions = permissions.map(|(domain, access)| Permission { domain, access });
        let nodes = DomainNodes { shared: self.clone(), by: DomId(0), transaction: None };
        let made = nodes
            .write(&format!("{home}/domid"), domain.to_string().as_bytes())
            .and_then(|()| nodes.set_permissions(&home, &permissions))
            .and_then(|()| nodes.set_permissions(&format!("{home}/domid"), &permissions));
        debug_assert!(made.is_ok(), "domain 0 may do all");
        self.fire_special("@introduceDomain");
    }

    /// A domain goes.
    pub fn release(&self, domain: DomId) {
        let nodes = DomainNodes { shared: self.clone(), by: DomId(0), transaction: None };
        let gone = nodes.remove(&home(domain));
        debug_assert!(gone.is_ok(), "domain 0 may do all");
        self.fire_special("@releaseDomain");
    }

    fn fire(&self, changes: &[Change]) {
        let mut watches = lock(&self.watches);
        for change in changes {
            for (id, watch) in &mut watches.list {
                if let Some(path) =
                    watch.event_path(change).and_then(|path| watch.add_pending(path))
                {
                    // The receiving thread lives as long as there is a sender.
                    let _ = self.events.send((*id, path));
                }
            }
        }
    }

    fn fire_special(&self, name: &str) {
        let watches = lock(&self.watches);
        for (id, _) in watches.list.iter().filter(|(_, watch)| watch.path == name) {
            let _ = self.events.send((*id, name.into()));
        }
    }
}

/// The store's thread: delivers events to watches.
fn deliver(queue: &Receiver<(u64, String)>, watches: &Mutex<Watches>) {
    for (id, path) in queue {
        let on_change = lock(watches).list.get_mut(&id).map(|watch| {
            // Before the callback runs: a change from here on is another event.
            watch.pending.remove(&path);
            watch.on_change.clone()
        });
        if let Some(on_change) = on_change {
            on_change(&path);
        }
    }
}

/// A domain's connection.
#[derive(Debug)]
pub struct DomainStore {
    view: DomainNodes,
}

impl DomainStore {
    pub fn new(shared: SharedStore, by: DomId) -> Self {
        Self { view: DomainNodes { shared, by, transaction: None } }
    }
}

impl Store for DomainStore {
    fn nodes(&self) -> &dyn Nodes {
        &self.view
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, StoreError> {
        let DomainNodes { shared, by, .. } = &self.view;
        let before = lock(&shared.tree).begin();
        let pending = PendingTransaction { now: before.clone(), before, changes: Vec::new() };
        let transaction = Some(Mutex::new(pending));
        Ok(Box::new(StoreTransaction {
            view: DomainNodes { shared: shared.clone(), by: *by, transaction },
        }))
    }

    fn watch(&self, path: &str, on_change: OnChange) -> Result<Watch, StoreError> {
        let DomainNodes { shared, by, .. } = &self.view;
        let special = path.starts_with('@');
        let whole = if special { path.to_owned() } else { absolute(*by, path)? };
        let watch = RegisteredWatch {
            by: *by,
            path: whole,
            relative: !special && !path.starts_with('/'),
            on_change: on_change.into(),
            pending: BTreeSet::new(),
        };
        let mut watches = lock(&shared.watches);
        watches.last += 1;
        let id = watches.last;
        let _ = shared.events.send((id, path.into()));
        watches.list.insert(id, watch);
        Ok(Watch::new(Box::new(WatchHandle { watches: shared.watches.clone(), id })))
    }
}

/// A watch in the list.
#[derive(Debug)]
struct WatchHandle {
    watches: Arc<Mutex<Watches>>,
    id: u64,
}

impl Ends for WatchHandle {}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        let gone = lock(&self.watches).list.remove(&self.id);
        // Dropped without the lock: the callback may own another watch.
        drop(gone);
    }
}

/// The state of a transaction.
#[derive(Debug)]
struct PendingTransaction {
    before: Tree,
    now: Tree,
    changes: Vec<Change>,
}

/// The nodes as a domain sees them: the current ones, or those of a transaction.
#[derive(Debug)]
struct DomainNodes {
    shared: SharedStore,
    by: DomId,
    transaction: Option<Mutex<PendingTransaction>>,
}

impl DomainNodes {
    fn look<T>(
        &self,
        look: impl FnOnce(&mut Tree) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.change(|tree| look(tree).map(|value| (value, None)))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut Tree) -> Result<(T, Option<Change>), StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(pending) = &self.transaction {
            let mut pending = lock(pending);
            let (value, changed) = change(&mut pending.now)?;
            pending.changes.extend(changed);
            return Ok(value);
        }
        let mut tree = lock(&self.shared.tree);
        let outcome = change(&mut tree);
        tree.forget_seen();
        let (value, changed) = outcome?;
        // With the lock held, so that events come in the order of changes.
        self.shared.fire(changed.as_slice());
        Ok(value)
    }

    fn path(&self, path: &str) -> Result<String, StoreError> {
        absolute(self.by, path)
    }
}

impl Nodes for DomainNodes {
    fn read(&self, path: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.path(path)?;
        self.look(|tree| tree.read(self.by, &path))
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|tree| tree.write(self.by, &path, value).map(|change| ((), Some(change))))
    }

    fn make(&self, path: &str) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|tree| tree.make(self.by, &path).map(|change| ((), change)))
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|tree| tree.remove(self.by, &path).map(|change| ((), change)))
    }

    fn directory(&self, path: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path(path)?;
        self.look(|tree| tree.directory(self.by, &path))
    }

    fn permissions(&self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let path = self.path(path)?;
        self.look(|tree| tree.permissions(self.by, &path))
    }

    fn set_permissions(&self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|tree| {
            tree.set_permissions(self.by, &path, permissions).map(|change| ((), Some(change)))
        })
    }
}

/// A transaction that was started.
#[derive(Debug)]
struct StoreTransaction {
    view: DomainNodes,
}

impl Transaction for StoreTransaction {
    fn nodes(&self) -> &dyn Nodes {
        &self.view
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        let DomainNodes { shared, transaction, .. } = &self.view;
        let Some(pending) = transaction else { return Ok(()) };
        let pending = lock(pending);
        let mut tree = lock(&shared.tree);
        tree.commit(&pending.before, &pending.now)?;
        shared.fire(&pending.changes);
        Ok(())
    }
}
