//! The store of a host, and its domains' connections to it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use super::sync::lock;
use super::tree::{Change, Pending, Session, Tree, absolute, home};
use super::watches::{Event, Watches};
use crate::DomId;
use crate::store::{
    Access, Ends, Nodes, OnChange, Permission, Store, StoreError, Transaction, Watch,
};

/// The store. Clones are the same store.
#[derive(Clone, Debug)]
pub struct SharedStore {
    tree: Arc<Mutex<Tree>>,
    watches: Arc<Mutex<Watches>>,
    /// Events to be delivered. Each event also waits in its watch, which bounds their number.
    events: Sender<Event>,
}

impl SharedStore {
    /// An empty store, and its thread.
    ///
    /// # Errors
    /// When no thread is left.
    pub fn new() -> io::Result<Self> {
        let (events, queue) = mpsc::channel();
        let watches = Arc::new(Mutex::new(Watches::default()));
        let delivered = watches.clone();
        // The thread ends with the last clone of the sender.
        Builder::new().name("rm-store".into()).spawn(move || {
            sandbox::enter_thread(sandbox::Role::Task);
            deliver(&queue, &delivered);
        })?;
        Ok(Self { tree: Arc::new(Mutex::new(Tree::new())), watches, events })
    }

    /// Fires the special watches for a new domain.
    pub fn introduce(&self, domain: DomId) {
        let home = home(domain);
        let permissions = [(DomId(0), Access::None), (domain, Access::Read)];
        let permissions = permissions.map(|(domain, access)| Permission { domain, access });
        let nodes = DomainNodes::new(self.clone(), DomId(0));
        let made = nodes
            .write(&format!("{home}/domid"), domain.to_string().as_bytes())
            .and_then(|()| nodes.set_permissions(&home, &permissions))
            .and_then(|()| nodes.set_permissions(&format!("{home}/domid"), &permissions));
        debug_assert!(made.is_ok(), "domain 0 may do all");
        self.fire_special("@introduceDomain");
    }

    /// Fires the special watches for the end of a domain.
    pub fn release(&self, domain: DomId) {
        let nodes = DomainNodes::new(self.clone(), DomId(0));
        let gone = nodes.remove(&home(domain));
        debug_assert!(gone.is_ok(), "domain 0 may do all");
        self.fire_special("@releaseDomain");
    }

    /// Queues events for these changes. Returns how many watches they concern.
    fn fire(&self, changes: &[Change]) -> u64 {
        let mut watches = lock(&self.watches);
        // The receiving thread lives as long as there is a sender.
        let send = |event| _ = self.events.send(event);
        changes.iter().map(|change| watches.fire(change, send)).sum()
    }

    fn fire_special(&self, name: &str) {
        lock(&self.watches).fire_special(name, |event| _ = self.events.send(event));
    }
}

/// The store's thread: delivers events to watches.
fn deliver(queue: &Receiver<Event>, watches: &Mutex<Watches>) {
    for event in queue {
        let on_change = lock(watches).take(&event);
        if let Some(on_change) = on_change {
            on_change(&event.1);
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
        Self { view: DomainNodes::new(shared, by) }
    }

    /// The work done through this connection since the last call: nodes that were looked at or
    /// changed, and watches that it concerned.
    pub fn take_work(&self) -> u64 {
        self.view.work.swap(0, Ordering::Relaxed)
    }
}

impl Store for DomainStore {
    fn nodes(&self) -> &dyn Nodes {
        &self.view
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, StoreError> {
        let DomainNodes { shared, by, work, .. } = &self.view;
        let pending = lock(&shared.tree).begin();
        Ok(Box::new(StoreTransaction {
            view: DomainNodes {
                shared: shared.clone(),
                by: *by,
                work: Arc::clone(work),
                transaction: Some(Mutex::new(pending)),
            },
        }))
    }

    fn watch(&self, path: &str, on_change: OnChange) -> Result<Watch, StoreError> {
        let DomainNodes { shared, by, .. } = &self.view;
        let special = path.starts_with('@');
        let whole = if special { path.to_owned() } else { absolute(*by, path)? };
        let relative = !special && !path.starts_with('/');
        let mut watches = lock(&shared.watches);
        let (id, path) = watches.add(*by, whole, relative, on_change);
        let _ = shared.events.send((id, path));
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
        let gone = lock(&self.watches).remove(self.id);
        // Dropped without the lock: the callback may own another watch.
        drop(gone);
    }
}

/// The nodes as a domain sees them: the current ones, or those of a transaction.
#[derive(Debug)]
struct DomainNodes {
    shared: SharedStore,
    by: DomId,
    /// The work done for the domain.
    work: Arc<AtomicU64>,
    transaction: Option<Mutex<Pending>>,
}

impl DomainNodes {
    fn new(shared: SharedStore, by: DomId) -> Self {
        DomainNodes { shared, by, work: Arc::default(), transaction: None }
    }

    fn look<T>(
        &self,
        look: impl FnOnce(&mut Session<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.change(|session| look(session).map(|value| (value, None)))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut Session<'_>) -> Result<(T, Option<Change>), StoreError>,
    ) -> Result<T, StoreError> {
        let mut pending = self.transaction.as_ref().map(lock);
        let mut tree = lock(&self.shared.tree);
        let mut session = Session::new(&mut tree, pending.as_deref_mut(), self.by);
        let outcome = change(&mut session);
        self.work.fetch_add(session.work(), Ordering::Relaxed);
        let (value, changed) = outcome?;
        match (&mut pending, changed) {
            (Some(pending), Some(changed)) => pending.note(changed),
            // The lock is held, so that events come in the order of changes.
            (None, changed) => self.fire(changed.as_slice()),
            (Some(_), None) => {}
        }
        Ok(value)
    }

    fn fire(&self, changes: &[Change]) {
        self.work.fetch_add(self.shared.fire(changes), Ordering::Relaxed);
    }

    fn path(&self, path: &str) -> Result<String, StoreError> {
        absolute(self.by, path)
    }
}

impl Nodes for DomainNodes {
    fn read(&self, path: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.path(path)?;
        self.look(|session| session.read(&path))
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|session| session.write(&path, value).map(|change| ((), Some(change))))
    }

    fn make(&self, path: &str) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|session| session.make(&path).map(|change| ((), change)))
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|session| session.remove(&path).map(|change| ((), change)))
    }

    fn directory(&self, path: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path(path)?;
        self.look(|session| session.directory(&path))
    }

    fn permissions(&self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let path = self.path(path)?;
        self.look(|session| session.permissions(&path))
    }

    fn set_permissions(&self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        let path = self.path(path)?;
        self.change(|session| {
            session.set_permissions(&path, permissions).map(|change| ((), Some(change)))
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

    fn commit(mut self: Box<Self>) -> Result<(), StoreError> {
        let view = &mut self.view;
        let Some(pending) = view.transaction.take() else { return Ok(()) };
        let mut pending = pending.into_inner().unwrap_or_else(PoisonError::into_inner);
        let changes = pending.take_changes();
        let mut tree = lock(&view.shared.tree);
        view.work.fetch_add(pending.len(), Ordering::Relaxed);
        tree.commit(view.by, pending)?;
        view.fire(&changes);
        Ok(())
    }
}
