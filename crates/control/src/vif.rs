//! Ports that another port stands for: vifs of a Xen domain, and processes as guests.

use hypervisor::embedded::{CopyUsage, StoreUsage};
use xen::netif::status::VifStatus;

use crate::kind::Kind;

/// A port that another port stands for.
pub struct Vif {
    /// Its name.
    pub name: String,
    /// The kind of the port that stands for it.
    pub kind: Kind,
    /// The process behind it, if that is known.
    pub peer: Option<i32>,
    /// The copies made for the guest, if its hypervisor is the embedded one.
    pub copy_usage: Option<CopyUsage>,
    /// Its use of the store, if its hypervisor is embedded here.
    pub store_usage: Option<StoreUsage>,
    /// Its status.
    pub status: VifStatus,
}
