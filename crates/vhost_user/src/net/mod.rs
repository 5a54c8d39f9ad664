//! A network device over vhost-user: virtio-net's queue pairs as ports of the frame pipeline.
//!
//! [`port`] starts and ends a port, [`device`] starts and stops the queue pairs of one connection,
//! [`queue_pair`] moves frames, and [`feature`] lists what can be negotiated. The front-end keeps
//! the configuration space and the control queue.
//!
//! "Rx" and "Tx" are the guest's: vring `2n` is the receive queue of pair `n`, vring `2n + 1` its
//! transmit queue (virtio 1.2, 5.1.2).

mod announcement;
pub mod device;
pub mod feature;
mod net_vring;
pub mod port;
pub mod queue_pair;
pub mod vring_pair;

pub use device::{ActiveVrings, QueueHost};
pub use port::{Port, PortConfig, StartError};
