//! Xen network interfaces: what `xen-netback` does in Linux, in user space and over any [`hypervisor::Hypervisor`].
//!
//! All directions are named from the guest's side, as netif.h does: *Tx* is what the frontend transmits.

#![forbid(unsafe_code)]

pub mod control;
pub mod fault;
pub mod slots;
pub mod toeplitz;
