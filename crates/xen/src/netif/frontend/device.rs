//! One interface of a domain, from its own side: how it finds its backend, and comes to terms with
//! it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::store::Changes;
use hypervisor::{Channel, DomId, Domain, Nodes, RemotePort, StoreError, Watch};

use super::FrontError;
use super::landing::Landing;
use super::mailbox::Caller;
use super::pages::Area;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::netif::direct;
use crate::netif::extensions::Extensions;
use crate::netif::times;
use crate::xenbus::State;

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

/// An interface.
pub struct Frontend {
    domain: Arc<dyn Domain>,
    front: String,
    back: String,
    backend: DomId,
    changes: Changes<()>,
    _watches: [Watch; 2],
}

impl Frontend {
    /// Finds interface number `handle` of a domain.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(domain: Arc<dyn Domain>, handle: u32) -> Result<Self, FrontError> {
        let front = format!("device/vif/{handle}");
        let nodes = domain.store().nodes();
        let back = nodes.text(&format!("{front}/backend"))?;
        let backend = nodes.number(&format!("{front}/backend-id"))?;
        let backend =
            DomId(backend.ok_or_else(|| FrontError::Missing(format!("{front}/backend-id")))?);
        let changes = Changes::new()?;
        let watch = |key: &str| changes.watch(domain.store(), &format!("{back}/{key}"), ());
        let watches = [watch("state")?, watch(times::KEY)?];
        Ok(Frontend { domain, front, back, backend, changes, _watches: watches })
    }

    /// Pages that so many queues and a control ring take.
    pub const fn pages(queues: u16) -> u32 {
        (Sender::PAGES + Receiver::PAGES) * queues as u32 + Caller::PAGES
    }

    /// Whose interface it is.
    pub fn domain(&self) -> &Arc<dyn Domain> {
        &self.domain
    }

    /// A key of its own, such as `mac`.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn own(&self, key: &str) -> Result<Option<String>, FrontError> {
        Ok(self.domain.store().nodes().find(&format!("{}/{key}", self.front))?)
    }

    /// The backend's directory.
    pub fn back(&self) -> &str {
        &self.back
    }

    /// The backend's state. One whose directory is gone, or hidden, is closed.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn peer(&self) -> Result<State, FrontError> {
        match State::read(self.domain.store().nodes(), &self.back)? {
            State::Unknown => Ok(State::Closed),
            state => Ok(state),
        }
    }

    /// Its own directory.
    pub(super) fn front(&self) -> &str {
        &self.front
    }

    /// What changes of the backend's state, and of its wish to know times, are known by: readable
    /// with one.
    pub fn changes(&self) -> &Changes<()> {
        &self.changes
    }

    /// Sets its own state.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn set_state(&self, state: State) -> Result<(), FrontError> {
        Ok(self.domain.store().nodes().put(&format!("{}/state", self.front), state.number())?)
    }

    /// Waits until the backend's state is one that `wanted` takes. False when `timeout` passes
    /// before.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn wait(
        &self,
        timeout: Duration,
        wanted: impl Fn(State) -> bool,
    ) -> Result<bool, FrontError> {
        let until = Instant::now() + timeout;
        while !wanted(self.peer()?) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.changes.wait(left);
        }
        Ok(true)
    }

    /// Makes rings in pages of `area`, and tells the backend, which must be waiting, of them.
    ///
    /// # Errors
    /// When there are no pages, grants or channels left, or the store can't be asked.
    pub fn connect(
        &self,
        wish: &Wish,
        mut area: Area,
    ) -> Result<(Vec<Queue>, Option<Caller>), FrontError> {
        let nodes = self.domain.store().nodes();
        let most = self.offered::<u16>(nodes, "multi-queue-max-queues")?.unwrap_or(1).max(1);
        let split = wish.split && self.has(nodes, "feature-split-event-channels")?;
        let control = wish.control && self.has(nodes, "feature-ctrl-ring")?;
        let count = wish.queues.clamp(1, most);
        let manner = Manner {
            split,
            extensions: self.able(wish).and(Extensions::offered(nodes, &self.back)?),
        };
        let queues =
            (0..count).map(|_| self.queue(manner, &mut area)).collect::<Result<Vec<_>, _>>()?;
        let control = if control { Some(self.control(&mut area)?) } else { None };
        hypervisor::transaction(self.domain.store(), |nodes| {
            manner.extensions.ask(nodes, &self.front)?;
            self.write(nodes, wish, &queues, control.as_ref().map(|(caller, port)| (caller, *port)))
        })?;
        self.set_state(State::Connected)?;
        Ok((queues, control.map(|(caller, _)| caller)))
    }

    /// Makes a device queue in pages of `area`, and asks the backend for it, which must be waiting.
    /// `None`: the backend has none. To be called before [`connect`](Self::connect), with pages
    /// of its own.
    ///
    /// # Errors
    /// When there are no pages, grants or channels left, or the store can't be asked.
    pub fn land(&self, mut area: Area) -> Result<Option<Landing>, FrontError> {
        if !self.has(self.domain.store().nodes(), direct::OFFER)? {
            return Ok(None);
        }
        let landing = Landing::new(&self.domain, self.backend, &mut area, self.open()?)?;
        hypervisor::transaction(self.domain.store(), |nodes| landing.write(nodes, &self.front))?;
        Ok(Some(landing))
    }

    /// What the connected backend says of the device queue: which it is, or why there is none.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn landed(&self) -> Result<Option<String>, FrontError> {
        Ok(self.domain.store().nodes().find(&format!("{}/{}", self.back, direct::PLACE))?)
    }

    fn offered<T: std::str::FromStr>(
        &self,
        nodes: &dyn Nodes,
        key: &str,
    ) -> Result<Option<T>, StoreError> {
        nodes.number(&format!("{}/{key}", self.back))
    }

    fn has(&self, nodes: &dyn Nodes, key: &str) -> Result<bool, StoreError> {
        Ok(self.offered::<u8>(nodes, key)?.is_some_and(|value| value != 0))
    }

    /// What it can and wants to do beyond netif.h.
    fn able(&self, wish: &Wish) -> Extensions {
        wish.extensions.and(Extensions { ranges: self.domain.has_parts(), guest_copy: true })
    }

    fn queue(&self, manner: Manner, area: &mut Area) -> Result<Queue, FrontError> {
        let (tx_port, tx) = self.open()?;
        let (rx_port, rx) = match manner.split {
            true => self.open().map(|(port, channel)| (Some(port), channel))?,
            false => (None, Arc::clone(&tx)),
        };
        let tx = Sender::new(&self.domain, self.backend, area, tx, manner.extensions.ranges)?;
        let rx = Receiver::new(&self.domain, self.backend, area, rx, manner.extensions.guest_copy)?;
        Ok(Queue { tx, rx, ports: (tx_port, rx_port) })
    }

    fn control(&self, area: &mut Area) -> Result<(Caller, RemotePort), FrontError> {
        let (port, channel) = self.open()?;
        Ok((Caller::new(&self.domain, self.backend, area, channel)?, port))
    }

    fn open(&self) -> Result<(RemotePort, Arc<dyn Channel>), FrontError> {
        let (port, channel) = self.domain.open(self.backend)?;
        Ok((port, channel.into()))
    }

    fn write(
        &self,
        nodes: &dyn Nodes,
        wish: &Wish,
        queues: &[Queue],
        control: Option<(&Caller, RemotePort)>,
    ) -> Result<(), StoreError> {
        let put = |key: &str, value: u32| nodes.put(&format!("{}/{key}", self.front), value);
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
