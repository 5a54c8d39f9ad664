//! A real Xen host under QEMU: the hypervisor, a Linux dom0 that is driven command by command, and
//! stock Linux guests in it, driven through their consoles.
//!
//! [`Testbed`] is what `scripts/xen` built, [`Dom0`] a host that runs, [`Domain`] a guest on it,
//! [`Service`] the daemon in dom0. Nothing of it needs KVM: the processor is emulated, its
//! virtualisation for PVH guests included, and nothing is kept: dom0's disk is a snapshot, and the
//! host dies with the process that started it.

mod disk;
mod dom0;
mod domain;
mod kind;
mod netback;
mod service;
mod testbed;

pub use disk::{DISK, DISK_NUMBER};
pub use dom0::{Dom0, Options};
pub use domain::{Domain, DomainSpec};
pub use kind::Kind;
pub use netback::Netback;
pub use service::{CONFIGURATION, LOG, Service};
pub use testbed::Testbed;
