//! A frontend's device queue: an Rx ring that a device fills, with the pages that it writes into
//! (see [`direct`](crate::netif::direct)).

use std::sync::Arc;

use hypervisor::{Channel, DomId, Domain, Nodes, PAGE, RemotePort, StoreError};
use ring::Memory;
use ring::front::FrontRing;

use super::{Frame, FrontError};
use crate::netif::direct;
use crate::netif::slots::Meta;
use crate::xenbus::{GrantedPages, PageAllocator};

/// A device queue.
pub struct Landing {
    ring: FrontRing<2>,
    ring_page: GrantedPages,
    /// The page that lists the others.
    list: GrantedPages,
    pages: GrantedPages,
    /// Which of them the backend has.
    posted: Box<[bool]>,
    /// Those of frames that were taken, to be posted again.
    taken: Vec<u32>,
    memory: Arc<Memory>,
    channel: Arc<dyn Channel>,
    port: RemotePort,
}

impl Landing {
    /// Pages that it takes.
    pub const PAGES: u32 = direct::PAGES + 2;

    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        area: &mut PageAllocator,
        (port, channel): (RemotePort, Arc<dyn Channel>),
    ) -> Result<Self, FrontError> {
        let ring_page = area.grant(domain, backend, 1, true)?;
        let list = area.grant(domain, backend, 1, false)?;
        let pages = area.grant(domain, backend, direct::PAGES, true)?;
        let memory = Arc::clone(domain.memory());
        let ring = FrontRing::new(Arc::clone(&memory), ring_page.addr(0))?;
        let references: Vec<u8> =
            (0..pages.len()).flat_map(|n| pages.reference(n).0.to_le_bytes()).collect();
        memory.write(list.addr(0), &references)?;
        let (posted, taken) =
            (vec![false; pages.len() as usize].into(), (0..pages.len()).collect());
        let mut landing =
            Landing { ring, ring_page, list, pages, posted, taken, memory, channel, port };
        landing.post()?;
        Ok(landing)
    }

    /// Writes the keys that ask for it into the frontend's directory `path`.
    pub(super) fn write(&self, nodes: &dyn Nodes, path: &str) -> Result<(), StoreError> {
        let put = |key: &str, value: u32| nodes.put(&format!("{path}/device-queue/{key}"), value);
        put("rx-ring-ref", self.ring_page.reference(0).0)?;
        put("event-channel", self.port.0)?;
        put("pages-ref", self.list.reference(0).0)?;
        put("pages", self.pages.len())
    }

    /// Its event channel.
    pub fn channel(&self) -> &Arc<dyn Channel> {
        &self.channel
    }

    /// The memory that frames are in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The pages that it receives into.
    pub fn pages(&self) -> &GrantedPages {
        &self.pages
    }

    /// The page that the ring is in.
    pub fn ring_page(&self) -> &GrantedPages {
        &self.ring_page
    }

    /// Takes the next frame, if there is one. Its page is its own until the next
    /// [`post`](Self::post).
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn next(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        if self.ring.ready()? == 0 {
            return Ok(false);
        }
        let [place, outcome] = self.ring.response(0)?;
        self.ring.take(1);
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

    /// Posts the pages of all frames that were taken.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn post(&mut self) -> Result<(), FrontError> {
        for id in self.taken.drain(..) {
            // There are as many slots as pages.
            self.ring.push([id, self.pages.reference(id).0])?;
            if let Some(posted) = self.posted.get_mut(id as usize) {
                *posted = true;
            }
        }
        if self.ring.publish()? {
            self.channel.notify();
        }
        Ok(())
    }

    /// Asks to be told of the next frame, and looks once more: whether there is one now.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        Ok(self.ring.arm(1)? > 0)
    }
}
