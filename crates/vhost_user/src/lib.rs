//! Ports and disks over vhost-user: a transport, and the devices that stand on it.
//!
//! [`transport`] is what every vhost-user back-end needs: sockets, messages, memory tables, vrings,
//! and the state machine of a session. [`net`] is a network interface: queue pairs, their features
//! and their place in the frame pipeline. [`blk`] is a disk. A device reaches the transport through
//! the trait [`transport::device::Device`]; the transport imports nothing from a device.

#![forbid(unsafe_code)]

pub mod blk;
pub mod net;
pub mod transport;
