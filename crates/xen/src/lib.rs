//! Xen's paravirtual devices, on any [`hypervisor::Hypervisor`] and [`hypervisor::Domain`].
//!
//! [`xenbus`] has what every kind of device shares (Linux: `drivers/xen/xenbus`): the state
//! machine of both ends, and the loop that follows the store. [`netif`] has network interfaces:
//! what `xen-netback` does in Linux and, in [`netif::frontend`], what `xen-netfront` does.
//! [`blkif`] has block devices: what `xen-blkback` does.
//!
//! `netif` and `blkif` use `xenbus`, but `xenbus` uses neither of them, and they do not use each
//! other.

#![forbid(unsafe_code)]

pub mod blkif;
pub mod netif;
pub mod page_budget;
pub mod xenbus;
