//! Block devices (xen/include/public/io/blkif.h): what `xen-blkback` does in Linux, in user space
//! and over any [`hypervisor::Hypervisor`].
//!
//! A vbd is a disk of [`storage`]: [`queue`] turns the requests of its rings into requests of
//! virtio-blk, and copies their data from and to pages that stay mapped ([`persistent_grants`]), or
//! by grant copies. [`request`] reads the slots of rings, [`layout`] knows where their fields are,
//! and [`vbd`] connects and disconnects.
//!
//! # What a hostile frontend could try
//!
//! - Changing a request, or a list of segments, while it is looked at: both are copied once, and
//!   only the copies are read.
//! - Segments that reach beyond their page, more of them than fit, a list of them that was not
//!   granted: the request is answered with an error, and counted.
//! - Revoking grants: a copy fails, and with it the request. A mapped page stays mapped.
//! - Having too much data in flight: a queue has [`queue::BUFFERS`] bytes, and takes no request for
//!   which there is no room. The number of mapped pages is limited, too.
//! - Connecting and disconnecting as fast as it can: see [`crate::xenbus`]. The time that requests
//!   in flight take to end is also charged.

pub mod blkback;
pub mod buffers;
mod driver;
pub mod error;
pub mod layout;
pub mod limits;
pub mod negotiation;
pub mod persistent_grants;
pub mod queue;
pub mod request;
pub mod service;
pub mod settings;
pub mod status;
pub mod vbd;
