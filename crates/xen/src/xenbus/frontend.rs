//! One device of a domain, from the frontend's side: finding the backend, and following its state.

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::store::Changes;
use hypervisor::{Channel, DomId, Domain, Nodes, RemotePort, StoreError, Watch};
use ring::Violation;
use thiserror::Error;

use super::State;

/// Why a frontend stops.
#[derive(Debug, Error)]
pub enum FrontError {
    /// The store fails, or a key is missing.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A key of the backend is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// No pages, grants or channels are left, or the system refuses them.
    #[error("{0}")]
    Os(#[from] io::Error),
    /// The backend breaks the rules of rings.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// The backend breaks other rules.
    #[error("the backend {0}")]
    Backend(&'static str),
}

/// A device, from the side of its frontend.
pub struct Frontend {
    domain: Arc<dyn Domain>,
    path: String,
    backend_path: String,
    backend: DomId,
    changes: Changes<()>,
    /// The watches end when they are dropped.
    _watches: Vec<Watch>,
}

impl Frontend {
    /// Finds device number `handle` of a class. Its [`changes`](Self::changes) are those of the
    /// backend's state, and of the backend's keys `watched`.
    ///
    /// # Errors
    /// When there is none, or the store fails.
    pub fn find(
        domain: Arc<dyn Domain>,
        class: &str,
        handle: u32,
        watched: &[&str],
    ) -> Result<Self, FrontError> {
        let path = format!("device/{class}/{handle}");
        let nodes = domain.store().nodes();
        let backend_path = nodes.text(&format!("{path}/backend"))?;
        let backend = nodes.number(&format!("{path}/backend-id"))?;
        let backend =
            DomId(backend.ok_or_else(|| FrontError::Missing(format!("{path}/backend-id")))?);
        let changes = Changes::new()?;
        let watch =
            |key: &&str| changes.watch(domain.store(), &format!("{backend_path}/{key}"), ());
        let watches = ["state"].iter().chain(watched).map(watch).collect::<Result<_, _>>()?;
        Ok(Frontend { domain, path, backend_path, backend, changes, _watches: watches })
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Arc<dyn Domain> {
        &self.domain
    }

    /// The domain of its backend.
    pub fn backend(&self) -> DomId {
        self.backend
    }

    /// Its own directory.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The backend's directory.
    pub fn backend_path(&self) -> &str {
        &self.backend_path
    }

    /// The nodes of the store.
    pub fn nodes(&self) -> &dyn Nodes {
        self.domain.store().nodes()
    }

    /// A key of its own directory, such as `mac`.
    ///
    /// # Errors
    /// When the store fails.
    pub fn key(&self, key: &str) -> Result<Option<String>, FrontError> {
        Ok(self.nodes().find(&format!("{}/{key}", self.path))?)
    }

    /// A number among the backend's keys.
    ///
    /// # Errors
    /// When the value is no such number, or the store fails.
    pub fn backend_number<T: FromStr>(&self, key: &str) -> Result<Option<T>, StoreError> {
        self.nodes().number(&format!("{}/{key}", self.backend_path))
    }

    /// Whether the backend offers a feature.
    ///
    /// # Errors
    /// As for [`backend_number`](Self::backend_number).
    pub fn backend_has(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.backend_number::<u8>(key)?.is_some_and(|value| value != 0))
    }

    /// The backend's state. A directory that is gone, or hidden, is a closed backend.
    ///
    /// # Errors
    /// When the store fails.
    pub fn backend_state(&self) -> Result<State, FrontError> {
        match State::read(self.nodes(), &self.backend_path)? {
            State::Unknown => Ok(State::Closed),
            state => Ok(state),
        }
    }

    /// Changes of the backend's state and keys. The descriptor is readable while there is one.
    pub fn changes(&self) -> &Changes<()> {
        &self.changes
    }

    /// Writes its own state.
    ///
    /// # Errors
    /// When the store fails.
    pub fn set_state(&self, state: State) -> Result<(), FrontError> {
        Ok(self.nodes().put(&format!("{}/state", self.path), state.number())?)
    }

    /// Waits until `accept` accepts the backend's state. False when `timeout` passes before.
    ///
    /// # Errors
    /// When the store fails.
    pub fn wait(
        &self,
        timeout: Duration,
        accept: impl Fn(State) -> bool,
    ) -> Result<bool, FrontError> {
        let until = Instant::now() + timeout;
        while !accept(self.backend_state()?) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.changes.wait(left);
        }
        Ok(true)
    }

    /// Opens an event channel for the backend to bind: its port, to be written into the store, and
    /// this end of it.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open_channel(&self) -> Result<(RemotePort, Arc<dyn Channel>), FrontError> {
        let (port, channel) = self.domain.open(self.backend)?;
        Ok((port, channel.into()))
    }
}
