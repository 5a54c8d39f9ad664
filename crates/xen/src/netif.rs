//! Network interfaces (xen/include/public/io/netif.h): what `xen-netback` does in Linux, in user
//! space and over any [`hypervisor::Hypervisor`]; and, in [`frontend`], what `xen-netfront` does,
//! over any [`hypervisor::Domain`].
//!
//! All directions are named from the guest's side, as netif.h does: *Tx* is what the frontend
//! transmits.

pub mod control_ring;
pub mod device_queue;
mod driver;
pub mod extensions;
pub mod fault;
pub mod frontend;
pub mod groups;
pub mod guest_copy;
pub mod guest_times;
pub mod hash_control;
pub mod negotiation;
pub mod netback;
pub mod options;
mod passed_grants;
pub mod queue;
pub mod rate;
pub mod service;
pub mod settings;
pub mod slots;
pub mod static_grants;
pub mod status;
pub mod toeplitz;
pub mod vif;
