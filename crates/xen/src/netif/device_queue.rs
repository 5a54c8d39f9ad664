//! A vif's device queue: an Rx ring that a device fills. The device writes frames for the vif's
//! address directly into pages that the frontend granted for them; this module only tells the
//! frontend in which page each frame is.
//!
//! The frontend asks for one by keys of its own, in `device-queue` below its directory:
//!
//! | key | |
//! | --- | --- |
//! | `rx-ring-ref` | the page of an Rx ring as of any queue |
//! | `event-channel` | its event channel |
//! | `pages` | how many pages there are to receive into, 1 to 256 |
//! | `pages-ref` | a page that lists their grants: numbers of four bytes |
//!
//! All these pages are mapped as long as the device may write into them. So each was granted to
//! this domain for writing, and a frontend that revokes a grant finds it in use until then. A
//! request posts a page to the device and names it twice, by its place in the list (`id`) and by
//! its grant. A request that names no page of the list, or one that is posted already, is a
//! violation. Responses come in the order of frames, not of requests: `id` says which page a frame
//! is in, and `offset` where the frame begins there. Checksums are those of the wire, and are not
//! verified.

use std::any::Any;
use std::error::Error;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use frame::{Accepts, Mac};
use hypervisor::{Channel, GrantRef, Nodes, RemotePort, StoreError};
use network::burst::{BURST, Burst};
use network::packet::Packet;
use network::port::{Coalescing, DeviceFrames, DeviceQueue, Notified, QueueError, QueuePair};
use ring::device::Put;
use ring::xdp::{Descriptor, Losses, Receiver, Socket};
use ring::xen::BackRing;
use ring::{GrantCopyBatch, Memory, Violation, xdp};

use crate::netif::fault::Fault;
use crate::netif::slots::{self, RxSlot};
use crate::xenbus::{self, KeyError};

/// Most pages of a device queue.
pub const PAGES: u32 = BackRing::<2>::SIZE;

/// Key in the backend's directory: there is a device that gives queues.
pub const FEATURE_KEY: &str = "feature-device-queue";
/// Key in the backend's directory: the description of the queue, or the reason why there is none.
pub const STATUS_KEY: &str = "device-queue";

/// A device that gives receive queues of its own to single stations.
pub trait Uplink: Debug + Send + Sync {
    /// Gives a queue to the station with address `mac`. Frames for that address are written into
    /// those of the first `count` of `pages`, which lie at address 0, that are posted.
    ///
    /// # Errors
    /// Why not, in words.
    fn add_queue(
        &self,
        mac: Mac,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<Box<dyn UplinkQueue>, Box<dyn Error + Send + Sync>>;
}

/// A queue that a device gives. Dropping the value returns the queue; from then on the device
/// writes into none of the pages.
pub trait UplinkQueue: Send {
    /// The receiver.
    fn receiver(&self) -> &Receiver;
    /// The receiver, to post pages to it and take frames.
    fn receiver_mut(&mut self) -> &mut Receiver;
    /// The description of the queue, for people.
    fn name(&self) -> &str;
}

/// The request of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceQueueKeys {
    /// The page of the ring.
    pub ring: GrantRef,
    /// Its event channel.
    pub port: RemotePort,
    /// The page with the list of pages to receive into.
    pub list: GrantRef,
    /// The number of pages to receive into, 1 to [`PAGES`].
    pub pages: u32,
}

impl DeviceQueueKeys {
    /// Reads the request of the frontend with directory `path`; `None`: no device queue is
    /// requested.
    ///
    /// # Errors
    /// The problem with the keys.
    pub fn read(nodes: &dyn Nodes, path: &str) -> Result<Option<DeviceQueueKeys>, KeyError> {
        let path = format!("{path}/device-queue");
        let keys = xenbus::Keys::new(nodes, &path);
        let Some(ring) = keys.number("rx-ring-ref")? else { return Ok(None) };
        let pages = keys.require("pages")?;
        if !(1..=PAGES).contains(&pages) {
            let (path, value) = (format!("{path}/pages"), pages.to_string());
            return Err(
                StoreError::Value { path, value, expected: "a number from 1 to 256" }.into()
            );
        }
        let (ring, port) = (GrantRef(ring), keys.port("event-channel")?);
        Ok(Some(DeviceQueueKeys { ring, port, list: keys.ring("pages-ref")?, pages }))
    }
}

/// The status of a device queue.
#[derive(Clone, Debug)]
pub enum DeviceQueueStatus {
    /// There is none, for this reason.
    Refused(String),
    /// There is one.
    Active {
        /// Which, in words.
        queue: String,
        /// The socket, which counts losses.
        socket: Weak<Socket>,
    },
}

impl DeviceQueueStatus {
    /// The frames that the device could not deliver.
    pub fn losses(&self) -> Losses {
        match self {
            DeviceQueueStatus::Refused(_) => Losses::default(),
            DeviceQueueStatus::Active { socket, .. } => {
                socket.upgrade().map_or(Losses::default(), |socket| socket.losses())
            }
        }
    }
}

/// The parts of a device queue.
pub struct DeviceQueueParts {
    /// The page of its ring.
    pub ring: Arc<Memory>,
    /// Its event channel.
    pub channel: Box<dyn Channel>,
    /// The device's queue, which writes into the pages of these grants.
    pub uplink_queue: Box<dyn UplinkQueue>,
    /// The grants.
    pub pages: Vec<GrantRef>,
}

/// A device queue.
pub struct DeviceRxQueue {
    rx: BackRing<2>,
    channel: Box<dyn Channel>,
    uplink_queue: Box<dyn UplinkQueue>,
    pages: Box<[Page]>,
    /// Frames that came since they were last taken out.
    received: DeviceFrames,
}

/// A page to receive into.
#[derive(Clone, Copy, Debug)]
struct Page {
    grant: GrantRef,
    /// The device has it.
    posted: bool,
}

impl DeviceRxQueue {
    /// Continues the ring from its present indices.
    ///
    /// # Errors
    /// When the indices of the ring contradict each other.
    pub fn new(parts: DeviceQueueParts) -> Result<Self, Violation> {
        let pages = parts.pages.into_iter().map(|grant| Page { grant, posted: false }).collect();
        let rx = BackRing::attach(parts.ring, 0)?;
        parts.channel.notify();
        let received = DeviceFrames::default();
        Ok(DeviceRxQueue {
            rx,
            channel: parts.channel,
            uplink_queue: parts.uplink_queue,
            pages,
            received,
        })
    }

    /// The status of the device queue.
    pub fn status(&self) -> DeviceQueueStatus {
        DeviceQueueStatus::Active {
            queue: self.uplink_queue.name().to_owned(),
            socket: self.uplink_queue.receiver().socket(),
        }
    }

    /// Posts to the device all pages that the frontend has posted.
    fn post_pages(&mut self) -> Result<(), QueueError> {
        let receiver = self.uplink_queue.receiver_mut();
        while self.rx.ready(1)? > 0 {
            let request = self.rx.request(0);
            let id = request[0] as u16;
            let page = self.pages.get_mut(usize::from(id));
            let page =
                page.filter(|page| page.grant.0 == slots::rx_reference(request) && !page.posted);
            let page = page.ok_or(QueueError::Device(Fault::NotDevicePage.name()))?;
            // The device's ring has room for all pages.
            if !receiver.fill.push(u64::from(id) * xdp::PAGE)? {
                break;
            }
            page.posted = true;
            self.rx.take(1);
        }
        Ok(receiver.publish()?)
    }

    /// Writes responses for the frames that came, up to a burst.
    fn collect(&mut self) -> Result<(), QueueError> {
        let frames = &mut self.uplink_queue.receiver_mut().frames;
        let (mut count, mut bytes) = (0, 0);
        while count < BURST as u64
            && let Some(frame) = frames.take()?
        {
            if let Some(response) = answer(&mut self.pages, frame) {
                self.rx.respond(response);
                count += 1;
                bytes += u64::from(frame.len);
            }
        }
        frames.release()?;
        self.received.frames += count;
        self.received.bytes += bytes;
        Ok(())
    }
}

/// The response that names the page and the offset of a frame. `None`: the frame is in no page that
/// was posted.
fn answer(pages: &mut [Page], frame: Descriptor) -> Option<RxSlot> {
    let (id, offset) = (frame.addr / xdp::PAGE, frame.addr % xdp::PAGE);
    let page = pages.get_mut(usize::try_from(id).ok()?)?;
    let fits = page.posted && offset + u64::from(frame.len) <= xdp::PAGE;
    page.posted &= !fits;
    fits.then(|| slots::rx_response(id as u16, offset as u16, frame.len as u16))
}

impl QueuePair for DeviceRxQueue {
    fn fetch(&mut self, _: &mut Burst) -> Result<(), QueueError> {
        self.collect()?;
        self.post_pages()
    }

    fn complete(&mut self, _: usize) {}

    fn rewind(&mut self, _: usize) {}

    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn prepare(&mut self, _: usize) -> Result<(), QueueError> {
        Ok(())
    }

    /// Refuses the frame: only the device puts frames into this ring.
    fn put(&mut self, _: &Packet<'_>, _: &mut GrantCopyBatch) -> Result<Put, QueueError> {
        Ok(Put::Refused)
    }

    fn room(&mut self) -> Result<usize, QueueError> {
        Ok(0)
    }

    fn flush(&mut self) -> Result<[Notified; 2], QueueError> {
        self.flush_now()
    }

    fn arm(&mut self, _: bool) -> Result<bool, QueueError> {
        self.channel.take();
        // While the device has most pages, further ones may wait: they are looked for when its next
        // frame comes.
        let half = (self.pages.len() as u32).div_ceil(2);
        let wanted = if self.rx.taken() < half { 1 } else { half };
        let posted = self.rx.arm_for(wanted)? >= wanted;
        Ok(self.uplink_queue.receiver_mut().frames.ready()? > 0 || posted)
    }

    fn disarm(&mut self) {}

    fn wakers(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.uplink_queue.receiver().waker()), Some(self.channel.waker())]
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }

    fn coalescing(&mut self) -> Option<&mut dyn Coalescing> {
        Some(self)
    }

    fn has_device_queue(&self) -> bool {
        true
    }

    fn device_queue(&mut self) -> Option<&mut dyn DeviceQueue> {
        Some(self)
    }
}

impl DeviceQueue for DeviceRxQueue {
    fn take_received(&mut self) -> DeviceFrames {
        std::mem::take(&mut self.received)
    }
}

impl Coalescing for DeviceRxQueue {
    fn flush_deferred(&mut self) -> Result<[Notified; 2], QueueError> {
        let told = match self.rx.publish() {
            None => Notified::Nothing,
            // The frontend must post pages before anything can come, so it is signalled even for
            // few frames.
            Some(true) if self.rx.taken() == 0 => {
                self.interrupt()?;
                Notified::Sent
            }
            Some(true) => Notified::Deferred,
            Some(false) => Notified::Suppressed,
        };
        Ok([Notified::Nothing, told])
    }

    fn interrupt(&mut self) -> Result<(), QueueError> {
        self.channel.notify();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_in_pages_that_were_lent() {
        let page = |posted| Page { grant: GrantRef(9), posted };
        let mut pages = [page(false), page(true), page(true)];
        let mut say = |addr, len| answer(&mut pages, Descriptor { addr, len });
        assert_eq!(say(256, 60), None, "not posted");
        assert_eq!(say(3 * 4096, 60), None, "no such page");
        assert_eq!(say(u64::MAX, 60), None);
        assert_eq!(say(4096 + 256, 3841), None, "beyond the page");
        assert_eq!(say(4096 + 256, u32::MAX), None);
        assert_eq!(say(4096 + 256, 3840), Some([1 | 256 << 16, 3840 << 16]));
        assert_eq!(say(4096 + 256, 60), None, "not any more");
        assert_eq!(say(2 * 4096, 60), Some([2, 60 << 16]));
    }
}
