//! virtio-net over vhost-user: sessions, devices and the driver side.
//!
//! The backend, from the socket up: [`socket`] and [`connection`] turn bytes into messages,
//! [`message`] turns messages into meaning, [`session`] keeps the state of one connection and
//! changes the queue pairs ([`queue`]) that the datapath works on, and [`device`] is the thread
//! that finds front-ends and serves them. [`driver`] is the other end: it plays a guest and its
//! front-end.

#![forbid(unsafe_code)]

pub mod connection;
pub mod device;
pub mod driver;
pub mod event;
pub mod feature;
pub mod message;
pub mod queue;
pub mod session;
pub mod socket;
pub mod status;
pub mod vring;
