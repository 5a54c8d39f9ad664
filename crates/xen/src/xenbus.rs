//! What every device on the bus shares (xen/include/public/io/xenbus.h): the state of each end.

pub mod state;

pub use state::State;
