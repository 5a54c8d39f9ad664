//! Receive queues of a host's device, which guests can have: connects `hostlink`'s implementation
//! to `xen`'s interface.

use std::error::Error;
use std::sync::Arc;

use frame::Mac;
use hostlink::xdp;
use ring::Memory;
use ring::xdp::Receiver;
use xen::netif::device_queue::{Uplink, UplinkQueue};

/// A device that gives its queues to guests.
#[derive(Debug)]
pub struct Device(pub xdp::Uplink);

/// One of its queues.
struct Queue(xdp::UplinkQueue);

impl Uplink for Device {
    fn add_queue(
        &self,
        mac: Mac,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<Box<dyn UplinkQueue>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Queue(self.0.add_queue(mac, pages, count)?)))
    }
}

impl UplinkQueue for Queue {
    fn receiver(&self) -> &Receiver {
        &self.0.receiver
    }

    fn receiver_mut(&mut self) -> &mut Receiver {
        &mut self.0.receiver
    }

    fn name(&self) -> &str {
        &self.0.name
    }
}
