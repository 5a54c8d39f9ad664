//! Receive queues of a host's device, for vifs.

use std::error::Error;
use std::sync::Arc;

use frame::Mac;
use hostlink::xdp;
use ring::Memory;
use ring::xdp::Receiver;
use xen::netif::direct::{Lease, Uplink};

/// A device that gives its queues to guests.
#[derive(Debug)]
pub struct Device(pub xdp::Uplink);

/// One of its queues.
struct Queue(xdp::Lease);

impl Uplink for Device {
    fn give(
        &self,
        mac: Mac,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<Box<dyn Lease>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Queue(self.0.give(mac, pages, count)?)))
    }
}

impl Lease for Queue {
    fn receiver(&self) -> &Receiver {
        &self.0.receiver
    }

    fn receiver_mut(&mut self) -> &mut Receiver {
        &mut self.0.receiver
    }

    fn place(&self) -> &str {
        &self.0.place
    }
}
