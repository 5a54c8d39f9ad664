//! The services of a hypervisor that a paravirtual backend uses: pages that other domains granted,
//! event channels, and the store in which both ends of a device find each other.
//!
//! A backend uses only the three traits here. [`xen`] implements them over Linux's device files,
//! without any of Xen's libraries. [`embedded`] is a hypervisor within this process, whose guests
//! are processes; [`test`] wraps it for tests. A frontend needs a [`Domain`]; guests of an embedded
//! host are such domains.

#[cfg(not(all(test, loom)))]
pub mod domain;
#[cfg(not(all(test, loom)))]
pub mod embedded;
#[cfg(not(all(test, loom)))]
pub mod events;
#[cfg(not(all(test, loom)))]
pub mod grants;
#[cfg(not(all(test, loom)))]
pub mod hypercall;
#[cfg(not(all(test, loom)))]
pub mod store;
#[cfg(not(all(test, loom)))]
pub mod test;
#[cfg(not(all(test, loom)))]
pub mod xen;

// Under loom, locks and atomics exist only in its models, so nothing else is compiled.
#[cfg(all(test, loom))]
mod models;

#[cfg(not(all(test, loom)))]
use std::sync::Arc;

#[cfg(not(all(test, loom)))]
pub use domain::{Domain, Extent};
#[cfg(not(all(test, loom)))]
pub use events::{Channel, EventError, Events, RemotePort};
#[cfg(not(all(test, loom)))]
pub use grants::{GrantError, Grants, TransitiveGrants};
#[cfg(not(all(test, loom)))]
pub use hypercall::{CopyOp, Hypercalls};
#[cfg(not(all(test, loom)))]
pub use ring::grant::{DomId, GrantRef, Granted, PAGE};
#[cfg(not(all(test, loom)))]
pub use store::{Nodes, Store, StoreError, Transaction, Watch, transaction};

/// A hypervisor as one domain sees it.
#[cfg(not(all(test, loom)))]
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
