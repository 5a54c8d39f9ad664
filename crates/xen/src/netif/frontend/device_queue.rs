//! A frontend's device queue: an Rx ring that a device fills, with the pages that it writes into
//! (see [`device_queue`](crate::netif::device_queue)).

use std::sync::Arc;

use ::ring::Memory;
use hypervisor::{Channel, DomId, Domain, Nodes, PAGE, RemotePort, StoreError};

use super::ring::GrantedRing;
use super::{Frame, FrameSource, FrontError};
use crate::netif::device_queue;
use crate::netif::slots::Meta;
use crate::xenbus::{GrantedPages, PageAllocator};

/// A device queue.
pub struct DeviceQueue {
    ring: GrantedRing<2>,
    /// The page with the list of the others.
    list: GrantedPages,
    pages: GrantedPages,
    /// Whether each page is posted, by index.
    posted: Box<[bool]>,
    /// Indices of pages whose frames were taken, to be posted again.
    taken: Vec<u32>,
    port: RemotePort,
}

impl DeviceQueue {
    /// Pages that it takes.
    pub const PAGES: u32 = device_queue::PAGES + 2;

    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        allocator: &mut PageAllocator,
        (port, channel): (RemotePort, Arc<dyn Channel>),
    ) -> Result<Self, FrontError> {
        let ring = GrantedRing::new(domain, backend, allocator, channel)?;
        let list = allocator.grant(domain, backend, 1, false)?;
        let pages = allocator.grant(domain, backend, device_queue::PAGES, true)?;
        let references: Vec<u8> =
            (0..pages.len()).flat_map(|n| pages.reference(n).0.to_le_bytes()).collect();
        domain.memory().write(list.addr(0), &references)?;
        let (posted, taken) =
            (vec![false; pages.len() as usize].into(), (0..pages.len()).collect());
        let mut device_queue = DeviceQueue { ring, list, pages, posted, taken, port };
        device_queue.post()?;
        Ok(device_queue)
    }

    /// Writes the keys that request the queue into the frontend's directory `path`.
    pub(super) fn write(&self, nodes: &dyn Nodes, path: &str) -> Result<(), StoreError> {
        let put = |key: &str, value: u32| nodes.put(&format!("{path}/device-queue/{key}"), value);
        put("rx-ring-ref", self.ring.page().reference(0).0)?;
        put("event-channel", self.port.0)?;
        put("pages-ref", self.list.reference(0).0)?;
        put("pages", self.pages.len())
    }

    /// The pages to receive into.
    pub fn pages(&self) -> &GrantedPages {
        &self.pages
    }

    /// The ring: its page, and its event channel.
    pub fn ring(&self) -> &GrantedRing<2> {
        &self.ring
    }

    /// Asks for a signal with the next frame, and looks once more. True when there is one now.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        Ok(self.ring.slots.arm(1)? > 0)
    }
}

impl FrameSource for DeviceQueue {
    fn next(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        if self.ring.slots.ready()? == 0 {
            return Ok(false);
        }
        let [place, outcome] = self.ring.slots.response(0)?;
        self.ring.slots.take(1);
        let (id, offset, len) = (place & 0xffff, place >> 16, outcome >> 16);
        match self.posted.get_mut(id as usize) {
            Some(posted) if *posted => *posted = false,
            _ => return Err(FrontError::Backend("used a page that it does not have")),
        }
        if (offset + len) as usize > PAGE {
            return Err(FrontError::Backend("wrote beyond a page"));
        }
        self.taken.push(id);
        frame.pieces.clear();
        frame.pieces.push((self.pages.addr(id) + u64::from(offset), len));
        (frame.len, frame.meta, frame.validated) = (len, Meta::default(), false);
        Ok(true)
    }

    fn post(&mut self) -> Result<(), FrontError> {
        for id in self.taken.drain(..) {
            // There are as many slots as pages.
            self.ring.slots.push([id, self.pages.reference(id).0])?;
            if let Some(posted) = self.posted.get_mut(id as usize) {
                *posted = true;
            }
        }
        Ok(self.ring.publish()?)
    }

    fn memory(&self) -> &Arc<Memory> {
        self.ring.memory()
    }
}
