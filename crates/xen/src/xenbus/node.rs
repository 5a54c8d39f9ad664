//! One device's place on the bus: its two directories in the store, and what its frontend grants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hypervisor::{
    Channel, EventError, GrantError, GrantRef, Hypervisor, Nodes, RemotePort, Store, StoreError,
};
use ring::Memory;

use super::{DeviceId, State};

/// A device as its backend finds it in the store.
#[derive(Debug)]
pub struct Node {
    id: DeviceId,
    hypervisor: Hypervisor,
    backend: String,
    frontend: String,
    /// How often the store had been lost when the device was last seen in it.
    losses_seen: AtomicU64,
}

impl Node {
    /// The device whose backend directory is `backend`.
    ///
    /// # Errors
    /// When that directory does not name the frontend's directory, or the store fails.
    pub fn new(hypervisor: Hypervisor, id: DeviceId, backend: String) -> Result<Self, StoreError> {
        let frontend = hypervisor.store.nodes().text(&format!("{backend}/frontend"))?;
        let losses_seen = AtomicU64::new(hypervisor.store.losses());
        Ok(Node { id, hypervisor, backend, frontend, losses_seen })
    }

    /// The id of the device.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The hypervisor that it belongs to.
    pub fn hypervisor(&self) -> &Hypervisor {
        &self.hypervisor
    }

    /// The directory of this end.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The directory of the other end. The frontend may write anything there.
    pub fn frontend(&self) -> &str {
        &self.frontend
    }

    /// A key of this end.
    pub fn backend_key(&self, key: &str) -> String {
        format!("{}/{key}", self.backend)
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        &*self.hypervisor.store
    }

    /// The nodes of the store.
    pub fn nodes(&self) -> &dyn Nodes {
        self.store().nodes()
    }

    /// The states of this end and of the other.
    ///
    /// # Errors
    /// When the store fails.
    pub fn states(&self) -> Result<(State, State), StoreError> {
        let nodes = self.nodes();
        let own = State::read(nodes, &self.backend)?;
        if own != State::Unknown {
            self.losses_seen.store(self.store().losses(), Ordering::Relaxed);
        } else if self.is_forgotten() {
            return Err(StoreError::Emptied);
        }
        Ok((own, State::read(nodes, &self.frontend)?))
    }

    /// Maps the page of a ring, readable and writable.
    ///
    /// # Errors
    /// When the frontend has not granted the page for writing.
    pub fn map_ring(&self, ring: GrantRef) -> Result<Arc<Memory>, GrantError> {
        self.map_ring_pages(&[ring])
    }

    /// Maps the pages of a ring side by side, readable and writable.
    ///
    /// # Errors
    /// When the frontend has not granted all of them for writing.
    pub fn map_ring_pages(&self, pages: &[GrantRef]) -> Result<Arc<Memory>, GrantError> {
        self.hypervisor.grants.map(self.id.domain, pages)
    }

    /// Binds an event channel that the frontend has opened.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn bind(&self, port: RemotePort) -> Result<Box<dyn Channel>, EventError> {
        self.hypervisor.events.bind(self.id.domain, port)
    }

    /// Whether the toolstack keeps the device when its frontend closes (`online`).
    pub(super) fn is_online(&self) -> Result<bool, StoreError> {
        let online = self.nodes().number::<u8>(&self.backend_key("online"))?;
        Ok(online.is_none_or(|online| online != 0))
    }

    /// Whether the hotplug script has finished with the device (`hotplug-status`).
    pub(super) fn is_hotplugged(&self) -> Result<bool, StoreError> {
        is_hotplugged(self.nodes(), &self.backend)
    }

    /// Whether the store was lost since the device was last seen in it. A store that was restarted
    /// is empty, so a missing directory does not mean that the device was removed.
    pub(super) fn is_forgotten(&self) -> bool {
        self.losses_seen.load(Ordering::Relaxed) != self.store().losses()
    }

    /// Why the hotplug script has failed, if it has.
    pub(super) fn plugging_error(&self) -> Result<Option<String>, StoreError> {
        let nodes = self.nodes();
        if nodes.find(&self.backend_key("hotplug-status"))?.as_deref() != Some("error") {
            return Ok(None);
        }
        let why = nodes.find(&self.backend_key("hotplug-error"))?;
        Ok(Some(format!(
            "plugging failed: {}",
            why.as_deref().unwrap_or("the script says no more")
        )))
    }

    /// Writes the state of this end, and `more` with it, in one transaction; nothing if the
    /// toolstack has removed the directory.
    pub(crate) fn write_state(
        &self,
        state: State,
        mut more: impl FnMut(&dyn Nodes) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let path = self.backend_key("state");
        hypervisor::transaction(self.store(), |nodes| {
            if nodes.find(&path)?.is_none() {
                return Ok(());
            }
            more(nodes)?;
            nodes.put(&path, state.number())
        })
    }

    /// Writes the state of this end, unless it is `own` already.
    pub(super) fn change_state(&self, own: State, state: State) -> Result<(), StoreError> {
        if own == state { Ok(()) } else { self.write_state(state, |_| Ok(())) }
    }

    /// The path at which toolstacks look for errors.
    pub(super) fn error_node(&self) -> String {
        let own = format!("/local/domain/{}/", self.hypervisor.domain);
        let device = self.backend.strip_prefix(&own).unwrap_or(&self.backend);
        format!("{own}error/{device}/error")
    }

    pub(super) fn clear_error(&self) {
        // A node that cannot be removed may stay: it is only out of date.
        if let Some((directory, _)) = self.error_node().rsplit_once('/') {
            let _ = self.nodes().remove(directory);
        }
    }

    /// Removes the error of a device that has been removed, and with the last one the directory of
    /// errors of its frontend's domain. A hostile guest that breaks the rules and reboots has
    /// another domain number each time, so remaining directories would add up.
    pub(super) fn remove_errors(&self) {
        self.clear_error();
        let node = self.error_node();
        // Below this directory are the handle's and the error itself.
        if let Some(domain) = node.rsplitn(3, '/').nth(2)
            && self.nodes().directory(domain).is_ok_and(|devices| devices.is_empty())
        {
            // As above, a directory that cannot be removed may stay.
            let _ = self.nodes().remove(domain);
        }
    }
}

/// Whether the hotplug script has finished with the device whose backend directory is `backend`.
///
/// # Errors
/// When the store fails.
pub fn is_hotplugged(nodes: &dyn Nodes, backend: &str) -> Result<bool, StoreError> {
    Ok(nodes.find(&format!("{backend}/hotplug-status"))?.as_deref() == Some("connected"))
}
