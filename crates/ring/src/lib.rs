//! Shared-memory rings: split and packed virtqueues, rings of Xen and of AF_XDP, and their memory.
//!
//! This is the only crate of the data path that touches bytes which a peer may be changing: all
//! code here assumes that the peer rewrites its descriptors, its indices and its payload at any
//! moment. So every module keeps these rules:
//!
//! - no `&` or `&mut` to peer memory is ever formed, except to atomics for indices and flags;
//!   everything else goes through raw pointers, and is copied exactly once before it is looked at;
//! - checks are made on the copy, and only checked values are used;
//! - every index is checked, every chain of links has a bound, every address is translated within
//!   one mapping;
//! - a peer that breaks the protocol gives a [`Violation`] with a name, never a panic or an endless
//!   loop.
//!
//! "Tx" and "Rx" are always meant from the driver's (the guest's) side: from a Tx ring the device
//! fetches, into an Rx ring it puts.

#[cfg(target_endian = "big")]
compile_error!("virtio structures are little endian and are used in place");

#[cfg(not(all(test, loom)))]
pub mod datagrams;
mod desc;
pub mod notify;
pub mod packed;

// Under loom, atomics exist only in its models: what uses peer memory is left out there.
#[cfg(not(all(test, loom)))]
pub mod body;
#[cfg(not(all(test, loom)))]
mod buffers;
#[cfg(not(all(test, loom)))]
pub mod copies;
#[cfg(not(all(test, loom)))]
pub mod copy;
#[cfg(not(all(test, loom)))]
pub mod device;
#[cfg(all(any(test, feature = "driver"), not(all(test, loom))))]
pub mod driver;
#[cfg(not(all(test, loom)))]
mod driver_memory;
#[cfg(not(all(test, loom)))]
mod fault;
#[cfg(not(all(test, loom)))]
pub mod front;
#[cfg(not(all(test, loom)))]
pub mod gather;
pub mod grant;
#[cfg(not(all(test, loom)))]
pub mod grant_copy_batch;
#[cfg(not(all(test, loom)))]
pub mod granted_copy;
#[cfg(not(all(test, loom)))]
pub mod heads;
#[cfg(not(all(test, loom)))]
pub mod inflight;
#[cfg(not(all(test, loom)))]
pub mod interrupt;
pub mod interrupt_thread;
#[cfg(not(all(test, loom)))]
pub mod io_chain;
#[cfg(all(test, not(loom)))]
mod kill;
#[cfg(not(all(test, loom)))]
mod layout;
#[cfg(all(test, not(loom)))]
mod model;
#[cfg(not(all(test, loom)))]
pub mod pages;
#[cfg(not(all(test, loom)))]
mod pending_log;
#[cfg(not(all(test, loom)))]
mod piece;
#[cfg(not(all(test, loom)))]
pub mod region;
#[cfg(not(all(test, loom)))]
pub mod request_ring;
#[cfg(not(all(test, loom)))]
pub mod segment;
#[cfg(not(all(test, loom)))]
pub mod split;
#[cfg(not(all(test, loom)))]
mod staging;
pub mod ticks;
#[cfg(not(all(test, loom)))]
pub mod violation;
#[cfg(not(all(test, loom)))]
mod virtqueue;
#[cfg(not(all(test, loom)))]
mod walk;
#[cfg(all(any(test, feature = "driver"), not(all(test, loom))))]
pub mod wire;
#[cfg(not(all(test, loom)))]
pub mod xdp;
#[cfg(not(all(test, loom)))]
pub mod xen;

#[cfg(not(all(test, loom)))]
pub use {
    device::{DeviceRing, Put, Recovery, RingConfig},
    gather::{Body, Chain, Engine, Gather},
    grant_copy_batch::GrantCopyBatch,
    io_chain::IoChain,
    packed::device::PackedDevice,
    packed::requests::PackedRequests,
    pages::{Page, Pages},
    region::{MapError, Memory, MemoryAccount, RegionSpec, WriteLog},
    request_ring::RequestRing,
    split::device::SplitDevice,
    split::requests::SplitRequests,
    violation::Violation,
};
