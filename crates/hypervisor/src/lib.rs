//! What a paravirtual backend needs of a hypervisor: pages that other domains granted, event channels, and the store
//! in which both ends of a device find each other.
//!
//! The three traits here are all that a backend knows of it. [`xen`] implements them over the devices that Linux has for
//! that, without any of Xen's libraries; [`embedded`] is a hypervisor of our own, whose guests are processes, and [`test`]
//! makes it one for tests. What a frontend needs is a [`Domain`], which an embedded host's guests are.

pub mod domain;
pub mod embedded;
pub mod events;
pub mod grants;
pub mod store;
pub mod test;
pub mod xen;

use std::sync::Arc;

pub use domain::{Domain, Extent};
pub use events::{Channel, EventError, Events, RemotePort};
pub use grants::{GrantError, Grants};
pub use ring::grant::{DomId, GrantRef, Granted, PAGE};
pub use store::{Nodes, Store, StoreError, Transaction, Watch, transaction};

/// A hypervisor as one domain sees it.
#[derive(Clone, Debug)]
pub struct Hypervisor {
    /// The domain that we run in.
    pub domain: DomId,
    /// Other domains' pages.
    pub grants: Arc<dyn Grants>,
    /// Signals to and from other domains.
    pub events: Arc<dyn Events>,
    /// The store.
    pub store: Arc<dyn Store>,
}
