//! Network interfaces (xen/include/public/io/netif.h): what `xen-netback` does in Linux, in user
//! space and over any [`hypervisor::Hypervisor`]; and, in [`frontend`], what `xen-netfront` does,
//! over any [`hypervisor::Domain`].
//!
//! All directions are named from the guest's side, as netif.h does: *Tx* is what the frontend
//! transmits.

pub mod align;
pub mod backend;
pub mod cache;
pub mod control;
pub mod direct;
pub mod extensions;
pub mod fault;
pub mod fetch;
pub mod frontend;
pub mod groups;
pub mod handshake;
mod loans;
pub mod mailbox;
pub mod netback;
pub mod options;
pub mod rate;
pub mod service;
pub mod settings;
pub mod slots;
pub mod status;
pub mod times;
pub mod toeplitz;
pub mod vif;
