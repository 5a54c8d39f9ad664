//! The keys that a toolstack writes into the store for a paravirtual device (as libxl does).

use crate::store::{Access, Nodes, Permission, StoreError, transaction};
use crate::{DomId, Store};

/// A device, with its frontend and its backend.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// The kind of device, such as `vif`.
    pub class: &'a str,
    /// Its number in its domain.
    pub handle: u32,
    /// The domain of its frontend.
    pub frontend: DomId,
    /// The backend that serves the device.
    pub backend: DomId,
    /// Further keys of the frontend's directory, such as `mac`.
    pub frontend_keys: &'a [(&'a str, &'a str)],
    /// Further keys of the backend's directory, such as `script`.
    pub backend_keys: &'a [(&'a str, &'a str)],
}

impl Device<'_> {
    /// The frontend's directory.
    pub fn frontend_path(&self) -> String {
        format!("/local/domain/{}/device/{}/{}", self.frontend, self.class, self.handle)
    }

    /// The backend's directory.
    pub fn backend_path(&self) -> String {
        format!(
            "/local/domain/{}/backend/{}/{}/{}",
            self.backend, self.class, self.frontend, self.handle
        )
    }

    pub(super) fn attach(&self, store: &dyn Store) -> Result<(), StoreError> {
        let (front, back) = (self.frontend_path(), self.backend_path());
        transaction(store, |nodes| {
            directory(nodes, &front, self.frontend, self.backend)?;
            directory(nodes, &back, self.backend, self.frontend)?;
            let frontend = [("backend", back.clone()), ("backend-id", self.backend.to_string())];
            let backend = [("frontend", front.clone()), ("frontend-id", self.frontend.to_string())];
            let common = [("state", "1".into()), ("handle", self.handle.to_string())];
            for (path, keys, more) in
                [(&front, frontend, self.frontend_keys), (&back, backend, self.backend_keys)]
            {
                for (key, value) in keys.iter().chain(&common) {
                    nodes.put(&format!("{path}/{key}"), value)?;
                }
                for (key, value) in more {
                    nodes.put(&format!("{path}/{key}"), value)?;
                }
            }
            nodes.put(&format!("{back}/online"), 1)
        })
    }

    pub(super) fn detach(&self, store: &dyn Store) -> Result<(), StoreError> {
        let back = self.backend_path();
        transaction(store, |nodes| {
            nodes.put(&format!("{back}/online"), 0)?;
            nodes.put(&format!("{back}/state"), 5)
        })
    }

    pub(super) fn forget(&self, store: &dyn Store) -> Result<(), StoreError> {
        let (front, back) = (self.frontend_path(), self.backend_path());
        transaction(store, |nodes| {
            remove(nodes, &front)?;
            remove(nodes, &back)?;
            // The backend's directory of the domain, unless the domain has other devices.
            let Some((domain, _)) = back.rsplit_once('/') else { return Ok(()) };
            match nodes.directory(domain) {
                Ok(devices) if devices.is_empty() => remove(nodes, domain),
                Err(error) if !error.is_not_found() => Err(error),
                _ => Ok(()),
            }
        })
    }
}

/// Removes a directory. The directories of a destroyed domain are gone already.
fn remove(nodes: &dyn Nodes, path: &str) -> Result<(), StoreError> {
    match nodes.remove(path) {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}

/// A directory that `owner` owns and `reader` reads, and that all below it inherits from.
fn directory(nodes: &dyn Nodes, path: &str, owner: DomId, reader: DomId) -> Result<(), StoreError> {
    nodes.make(path)?;
    let owner = Permission { domain: owner, access: Access::None };
    let reader = Permission { domain: reader, access: Access::Read };
    nodes.set_permissions(path, &[owner, reader])
}
