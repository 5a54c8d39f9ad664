//! The common part of all paravirtual devices, independent of what passes through their rings
//! (xen/include/public/io/xenbus.h; Linux: drivers/xen/xenbus).
//!
//! The two ends of a device are directories of the store. Each end writes its state there, and
//! watches the other's. From the side of a backend:
//!
//! - [`Service`] is one thread that finds the devices of one class as the toolstack makes them;
//! - [`Backend`] is the state machine of one device: when to offer, connect, disconnect;
//! - [`Node`] is a device's place on the bus: its directories, grants and event channels;
//! - [`Driver`] and [`Device`] are what a class of devices implements. The bus knows nothing else
//!   of it.
//!
//! From the side of a frontend, [`Frontend`] is the same for one device of a
//! [`hypervisor::Domain`], and [`GrantedPages`] the memory that its rings and buffers lie in.
//!
//! # What a hostile frontend could try
//!
//! - Rewriting its keys as fast as it can: changes between two looks of the thread count as one,
//!   and a look reads one directory.
//! - Changing the keys of a connection in place: the keys are read once, and another set ends the
//!   connection.
//! - Connecting and disconnecting as fast as it can: the cost to the workers is charged to the
//!   device's own budget ([`network::control_budget`]), and its changes are ignored while the
//!   budget is overdrawn.
//! - Breaking the rules and connecting again at once: pauses between connections double, from
//!   50 ms to 2 s.
//! - Naming one page for two rings, or one event channel for two uses: refused
//!   ([`keys::check_distinct`]).

pub mod backend;
pub mod bus;
pub mod driver;
pub mod frontend;
pub mod grant_copy;
pub mod id;
pub mod keys;
pub mod node;
pub mod pages;
pub mod script;
pub mod service;
pub mod state;
pub mod status;

pub use backend::Backend;
pub use bus::{Bus, Change};
pub use driver::{Device, DeviceError, Driver};
pub use frontend::{FrontError, Frontend};
pub use grant_copy::GrantCopyEngine;
pub use id::DeviceId;
pub use keys::{KeyError, Keys};
pub use node::Node;
pub use pages::{GrantedPages, PageAllocator};
pub use service::{Service, ServiceError};
pub use state::State;
pub use status::{Condition, DeviceStatus};
