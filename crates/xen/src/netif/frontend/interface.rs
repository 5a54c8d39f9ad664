//! One interface of a domain, from the frontend's side: finding the backend, and negotiating with
//! it.

use std::sync::Arc;

use hypervisor::{Domain, Nodes, RemotePort, StoreError};

use super::FrontError;
use super::control_ring::ControlRing;
use super::device_queue::DeviceQueue;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::netif::device_queue;
use crate::netif::extensions::Extensions;
use crate::netif::guest_times;
use crate::xenbus::{self, PageAllocator, State};

/// The settings of a frontend.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// Queues, at least one; fewer if the backend has no more.
    pub queues: u16,
    /// An event channel for each direction of a queue, if the backend can do that.
    pub split: bool,
    /// A control ring, if the backend has one.
    pub control: bool,
    /// Takes frames in several pages, frames to be segmented, and blank checksums.
    pub offloads: bool,
    /// Extensions of netif.h, as far as the backend offers them and the domain supports them.
    pub extensions: Extensions,
}

impl Default for FrontendConfig {
    fn default() -> Self {
        let extensions = Extensions { ranges: true, guest_copy: true };
        FrontendConfig { queues: 1, split: true, control: true, offloads: true, extensions }
    }
}

/// The features of queues that both ends have agreed on.
#[derive(Clone, Copy)]
struct Negotiated {
    split: bool,
    extensions: Extensions,
}

/// A queue.
pub struct Queue {
    /// Its Tx ring.
    pub tx: Sender,
    /// Its Rx ring.
    pub rx: Receiver,
    /// The ports of both channels, as the backend names them.
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
        Ok(Frontend { bus: xenbus::Frontend::find(domain, "vif", handle, &[guest_times::KEY])? })
    }

    /// The device on the bus: keys, and the state of both ends.
    pub fn bus(&self) -> &xenbus::Frontend {
        &self.bus
    }

    /// Pages of `queues` queues and a control ring.
    pub const fn pages(queues: u16) -> u32 {
        (Sender::PAGES + Receiver::PAGES) * queues as u32 + ControlRing::PAGES
    }

    /// Creates rings in pages of `allocator`, and announces them to the backend, which must be
    /// waiting.
    ///
    /// # Errors
    /// When there are no pages, grants or channels left, or the store can't be asked.
    pub fn connect(
        &self,
        config: &FrontendConfig,
        mut allocator: PageAllocator,
    ) -> Result<(Vec<Queue>, Option<ControlRing>), FrontError> {
        let most = self.bus.backend_number::<u16>("multi-queue-max-queues")?.unwrap_or(1).max(1);
        let split = config.split && self.bus.backend_has("feature-split-event-channels")?;
        let control = config.control && self.bus.backend_has("feature-ctrl-ring")?;
        let count = config.queues.clamp(1, most);
        let negotiated = Negotiated {
            split,
            extensions: self
                .able(config)
                .and(Extensions::offered(self.bus.nodes(), self.bus.backend_path())?),
        };
        let queues = (0..count)
            .map(|_| self.queue(negotiated, &mut allocator))
            .collect::<Result<Vec<_>, _>>()?;
        let control = if control { Some(self.control(&mut allocator)?) } else { None };
        hypervisor::transaction(self.bus.domain().store(), |nodes| {
            negotiated.extensions.ask(nodes, self.bus.path())?;
            self.write(
                nodes,
                config,
                &queues,
                control.as_ref().map(|(control_ring, port)| (control_ring, *port)),
            )
        })?;
        self.bus.set_state(State::Connected)?;
        Ok((queues, control.map(|(control_ring, _)| control_ring)))
    }

    /// Creates a device queue in pages of `allocator`, and requests it from the backend, which must
    /// be waiting. `None`: the backend has none. To be called before [`connect`](Self::connect),
    /// with pages of its own.
    ///
    /// # Errors
    /// When there are no pages, grants or channels left, or the store can't be asked.
    pub fn request_device_queue(
        &self,
        mut allocator: PageAllocator,
    ) -> Result<Option<DeviceQueue>, FrontError> {
        if !self.bus.backend_has(device_queue::FEATURE_KEY)? {
            return Ok(None);
        }
        let device_queue = DeviceQueue::new(
            self.bus.domain(),
            self.bus.backend(),
            &mut allocator,
            self.bus.open_channel()?,
        )?;
        hypervisor::transaction(self.bus.domain().store(), |nodes| {
            device_queue.write(nodes, self.bus.path())
        })?;
        Ok(Some(device_queue))
    }

    /// The status of the device queue that the connected backend shows: which it is, or why there
    /// is none.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn device_queue_status(&self) -> Result<Option<String>, FrontError> {
        Ok(self.bus.nodes().find(&format!(
            "{}/{}",
            self.bus.backend_path(),
            device_queue::STATUS_KEY
        ))?)
    }

    /// The extensions of netif.h that the domain supports and the configuration asks for.
    fn able(&self, config: &FrontendConfig) -> Extensions {
        config
            .extensions
            .and(Extensions { ranges: self.bus.domain().has_sub_page_grants(), guest_copy: true })
    }

    fn queue(
        &self,
        negotiated: Negotiated,
        allocator: &mut PageAllocator,
    ) -> Result<Queue, FrontError> {
        let (tx_port, tx) = self.bus.open_channel()?;
        let (rx_port, rx) = match negotiated.split {
            true => self.bus.open_channel().map(|(port, channel)| (Some(port), channel))?,
            false => (None, Arc::clone(&tx)),
        };
        let tx = Sender::new(
            self.bus.domain(),
            self.bus.backend(),
            allocator,
            tx,
            negotiated.extensions.ranges,
        )?;
        let rx = Receiver::new(
            self.bus.domain(),
            self.bus.backend(),
            allocator,
            rx,
            negotiated.extensions.guest_copy,
        )?;
        Ok(Queue { tx, rx, ports: (tx_port, rx_port) })
    }

    fn control(
        &self,
        allocator: &mut PageAllocator,
    ) -> Result<(ControlRing, RemotePort), FrontError> {
        let (port, channel) = self.bus.open_channel()?;
        Ok((ControlRing::new(self.bus.domain(), self.bus.backend(), allocator, channel)?, port))
    }

    fn write(
        &self,
        nodes: &dyn Nodes,
        config: &FrontendConfig,
        queues: &[Queue],
        control: Option<(&ControlRing, RemotePort)>,
    ) -> Result<(), StoreError> {
        let put = |key: &str, value: u32| nodes.put(&format!("{}/{key}", self.bus.path()), value);
        put("request-rx-copy", 1)?;
        put("feature-rx-notify", 1)?;
        for key in
            ["feature-sg", "feature-gso-tcpv4", "feature-gso-tcpv6", "feature-ipv6-csum-offload"]
        {
            put(key, config.offloads.into())?;
        }
        put("feature-no-csum-offload", (!config.offloads).into())?;
        put("multi-queue-num-queues", queues.len() as u32)?;
        for (n, queue) in queues.iter().enumerate() {
            // A single queue has the keys of a frontend without multiple queues.
            let at = |key: &str| {
                if queues.len() == 1 { key.to_owned() } else { format!("queue-{n}/{key}") }
            };
            put(&at("tx-ring-ref"), queue.tx.ring().page().reference(0).0)?;
            put(&at("rx-ring-ref"), queue.rx.ring().page().reference(0).0)?;
            match queue.ports {
                (tx, Some(rx)) => {
                    put(&at("event-channel-tx"), tx.0)?;
                    put(&at("event-channel-rx"), rx.0)?;
                }
                (both, None) => put(&at("event-channel"), both.0)?,
            }
        }
        if let Some((control_ring, port)) = control {
            put("ctrl-ring-ref", control_ring.ring().page().reference(0).0)?;
            put("event-channel-ctrl", port.0)?;
        }
        Ok(())
    }
}
