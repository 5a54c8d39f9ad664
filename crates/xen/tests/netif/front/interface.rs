//! A vif and the queues of its frontend, of either kind.

use std::ops::{Deref, DerefMut};

use super::{FrontSpec, Host, Peer, RawControlRing, Received, Vif, is_greeting, wait};

/// A vif with a frontend.
pub struct Interface<Q> {
    vif: Vif,
    pub queues: Vec<Q>,
    /// The control ring of a frontend that is made by hand.
    pub control_ring: Option<RawControlRing>,
}

/// A queue of a frontend.
pub trait InterfaceQueue: Sized {
    /// Waits for the backend, and connects. What the frontend had before is released.
    fn connect(front: &mut Interface<Self>);
    /// Sends a frame, and tells the backend.
    fn send(&self, frame: &[u8]);
    /// Takes the frames that came, and posts their pages again.
    fn received(&self) -> Vec<Received>;
}

impl<Q> Deref for Interface<Q> {
    type Target = Vif;

    fn deref(&self) -> &Vif {
        &self.vif
    }
}

impl<Q> DerefMut for Interface<Q> {
    fn deref_mut(&mut self) -> &mut Vif {
        &mut self.vif
    }
}

impl<Q: InterfaceQueue> Interface<Q> {
    /// A domain with one vif that is connected.
    pub fn connected(host: &Host, domain: u16, spec: FrontSpec) -> Self {
        let mut front = Self::attached(host, domain, spec);
        front.connect();
        wait(|| host.connected(&front));
        front
    }

    /// A domain with one vif that waits.
    pub fn attached(host: &Host, domain: u16, spec: FrontSpec) -> Self {
        Interface { vif: Vif::attached(host, domain, spec), queues: vec![], control_ring: None }
    }

    /// Another vif of the same domain.
    pub fn sibling(&self, handle: u32, spec: FrontSpec) -> Self {
        Interface { vif: self.vif.sibling(handle, spec), queues: vec![], control_ring: None }
    }

    /// Waits for the backend, and connects. What the frontend had before is released.
    pub fn connect(&mut self) {
        Q::connect(self);
    }

    /// Sends a frame on queue 0.
    #[track_caller]
    pub fn send(&self, frame: &[u8]) {
        self.queues[0].send(frame);
    }

    /// All frames that came, on whatever queue, but for greetings.
    pub fn received(&self) -> Vec<Received> {
        let mut all = self.heard();
        all.retain(|got| !is_greeting(&got.frame));
        all
    }

    /// Waits for `n` frames.
    #[track_caller]
    pub fn expect(&self, n: usize) -> Vec<Received> {
        let mut all = Vec::new();
        wait(|| {
            all.extend(self.received());
            all.len() >= n
        });
        all
    }
}

impl<Q: InterfaceQueue> Peer for Interface<Q> {
    fn greet(&self, frame: &[u8]) {
        self.send(frame);
    }

    fn heard(&self) -> Vec<Received> {
        self.queues.iter().flat_map(Q::received).collect()
    }
}
