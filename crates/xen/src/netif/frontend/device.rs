//! One interface of a domain, from its own side: how it finds its backend, and comes to terms with
//! it.

use std::sync::Arc;

use hypervisor::{Domain, Nodes, RemotePort, StoreError};

use super::FrontError;
use super::landing::Landing;
use super::mailbox::Caller;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::netif::direct;
use crate::netif::extensions::Extensions;
use crate::netif::times;
use crate::xenbus::{self, PageAllocator, State};

/// What a frontend wants to be like.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Queues, at least one; fewer if the backend has no more.
    pub queues: u16,
    /// An event channel for each direction of a queue, if the backend can do that.
    pub split: bool,
    /// A control ring, if the backend has one.
    pub control: bool,
    /// Takes frames in several pages, frames to be segmented, and blank checksums.
    pub offloads: bool,
    /// What it does beyond netif.h, as far as the backend offers that and the domain can do it.
    pub extensions: Extensions,
}

impl Default for Wish {
    fn default() -> Self {
        let extensions = Extensions { ranges: true, guest_copy: true };
        Wish { queues: 1, split: true, control: true, offloads: true, extensions }
    }
}

/// How queues are made, as both ends have agreed.
#[derive(Clone, Copy)]
struct Manner {
    split: bool,
    extensions: Extensions,
}

/// A queue.
pub struct Queue {
    /// Its Tx ring.
    pub tx: Sender,
    /// Its Rx ring.
    pub rx: Receiver,
    /// The ports of both, as the backend calls them.
    ports: (RemotePort, Option<RemotePort>),
}

/// A network interface, from the side of its frontend (Linux: xen-netfront).
pub struct Frontend {
    bus: xenbus::Frontend,
}

impl Frontend {
    /// Finds interface number `handle` of a domain.
    ///
    /// # Errors
    /// When there is none, or the store fails.
    pub fn find(domain: Arc<dyn Domain>, handle: u32) -> Result<Self, FrontError> {
        Ok(Frontend { bus: xenbus::Frontend::find(domain, "vif", handle, &[times::KEY])? })
    }

    /// Its place on the bus: keys, and the state of both ends.
    pub fn bus(&self) -> &xenbus::Frontend {
        &self.bus
    }

    /// Pages that so many queues and a control ring take.
    pub const fn pages(queues: u16) -> u32 {
        (Sender::PAGES + Receiver::PAGES) * queues as u32 + Caller::PAGES
    }

    /// Makes rings in pages of `area`, and tells the backend, which must be waiting, of them.
    ///
    /// # Errors
    /// When there are no pages, grants or channels left, or the store can't be asked.
    pub fn connect(
        &self,
        wish: &Wish,
        mut area: PageAllocator,
    ) -> Result<(Vec<Queue>, Option<Caller>), FrontError> {
        let most = self.bus.backend_number::<u16>("multi-queue-max-queues")?.unwrap_or(1).max(1);
        let split = wish.split && self.bus.backend_has("feature-split-event-channels")?;
        let control = wish.control && self.bus.backend_has("feature-ctrl-ring")?;
        let count = wish.queues.clamp(1, most);
        let manner = Manner {
            split,
            extensions: self
                .able(wish)
                .and(Extensions::offered(self.bus.nodes(), self.bus.backend_path())?),
        };
        let queues =
            (0..count).map(|_| self.queue(manner, &mut area)).collect::<Result<Vec<_>, _>>()?;
        let control = if control { Some(self.control(&mut area)?) } else { None };
        hypervisor::transaction(self.bus.domain().store(), |nodes| {
            manner.extensions.ask(nodes, self.bus.path())?;
            self.write(nodes, wish, &queues, control.as_ref().map(|(caller, port)| (caller, *port)))
        })?;
        self.bus.set_state(State::Connected)?;
        Ok((queues, control.map(|(caller, _)| caller)))
    }

    /// Makes a device queue in pages of `area`, and asks the backend for it, which must be waiting.
    /// `None`: the backend has none. To be called before [`connect`](Self::connect), with pages
    /// of its own.
    ///
    /// # Errors
    /// When there are no pages, grants or channels left, or the store can't be asked.
    pub fn land(&self, mut area: PageAllocator) -> Result<Option<Landing>, FrontError> {
        if !self.bus.backend_has(direct::OFFER)? {
            return Ok(None);
        }
        let landing = Landing::new(
            self.bus.domain(),
            self.bus.backend(),
            &mut area,
            self.bus.open_channel()?,
        )?;
        hypervisor::transaction(self.bus.domain().store(), |nodes| {
            landing.write(nodes, self.bus.path())
        })?;
        Ok(Some(landing))
    }

    /// What the connected backend says of the device queue: which it is, or why there is none.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn landed(&self) -> Result<Option<String>, FrontError> {
        Ok(self.bus.nodes().find(&format!("{}/{}", self.bus.backend_path(), direct::PLACE))?)
    }

    /// What it can and wants to do beyond netif.h.
    fn able(&self, wish: &Wish) -> Extensions {
        wish.extensions.and(Extensions { ranges: self.bus.domain().has_parts(), guest_copy: true })
    }

    fn queue(&self, manner: Manner, area: &mut PageAllocator) -> Result<Queue, FrontError> {
        let (tx_port, tx) = self.bus.open_channel()?;
        let (rx_port, rx) = match manner.split {
            true => self.bus.open_channel().map(|(port, channel)| (Some(port), channel))?,
            false => (None, Arc::clone(&tx)),
        };
        let tx =
            Sender::new(self.bus.domain(), self.bus.backend(), area, tx, manner.extensions.ranges)?;
        let rx = Receiver::new(
            self.bus.domain(),
            self.bus.backend(),
            area,
            rx,
            manner.extensions.guest_copy,
        )?;
        Ok(Queue { tx, rx, ports: (tx_port, rx_port) })
    }

    fn control(&self, area: &mut PageAllocator) -> Result<(Caller, RemotePort), FrontError> {
        let (port, channel) = self.bus.open_channel()?;
        Ok((Caller::new(self.bus.domain(), self.bus.backend(), area, channel)?, port))
    }

    fn write(
        &self,
        nodes: &dyn Nodes,
        wish: &Wish,
        queues: &[Queue],
        control: Option<(&Caller, RemotePort)>,
    ) -> Result<(), StoreError> {
        let put = |key: &str, value: u32| nodes.put(&format!("{}/{key}", self.bus.path()), value);
        put("request-rx-copy", 1)?;
        put("feature-rx-notify", 1)?;
        for key in
            ["feature-sg", "feature-gso-tcpv4", "feature-gso-tcpv6", "feature-ipv6-csum-offload"]
        {
            put(key, wish.offloads.into())?;
        }
        put("feature-no-csum-offload", (!wish.offloads).into())?;
        put("multi-queue-num-queues", queues.len() as u32)?;
        for (n, queue) in queues.iter().enumerate() {
            // A single queue's keys are those of a frontend that knows of no queues.
            let at = |key: &str| {
                if queues.len() == 1 { key.to_owned() } else { format!("queue-{n}/{key}") }
            };
            put(&at("tx-ring-ref"), queue.tx.ring_page().reference(0).0)?;
            put(&at("rx-ring-ref"), queue.rx.ring_page().reference(0).0)?;
            match queue.ports {
                (tx, Some(rx)) => {
                    put(&at("event-channel-tx"), tx.0)?;
                    put(&at("event-channel-rx"), rx.0)?;
                }
                (both, None) => put(&at("event-channel"), both.0)?,
            }
        }
        if let Some((caller, port)) = control {
            put("ctrl-ring-ref", caller.ring_page().reference(0).0)?;
            put("event-channel-ctrl", port.0)?;
        }
        Ok(())
    }
}
