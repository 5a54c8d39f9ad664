//! A frontend that is made by hand, slot by slot, and can do anything.

use super::interface::{Interface, InterfaceQueue};
use super::{FrontQueue, RawControlRing, Received, wait};

/// A frontend that is made by hand.
pub type Front = Interface<FrontQueue>;

impl Front {
    /// Makes rings and writes all keys, but not the state.
    pub fn make(&mut self) {
        let spec = self.spec.clone();
        self.queues = (0..spec.queues).map(|_| FrontQueue::new(self)).collect();
        let flag = |on: bool| u8::from(on);
        self.put("request-rx-copy", 1);
        self.put("feature-rx-notify", 1);
        self.put("feature-sg", flag(spec.sg));
        self.put("feature-gso-tcpv4", flag(spec.gso));
        self.put("feature-gso-tcpv6", flag(spec.gso));
        self.put("feature-no-csum-offload", flag(!spec.csum));
        self.put("feature-ipv6-csum-offload", flag(spec.csum));
        if spec.queues > 1 {
            self.put("multi-queue-num-queues", spec.queues);
        }
        for (n, queue) in self.queues.iter().enumerate() {
            let at = |key: &str| {
                if spec.queues == 1 { key.to_string() } else { format!("queue-{n}/{key}") }
            };
            self.put(&at("tx-ring-ref"), queue.tx_ring.1);
            self.put(&at("rx-ring-ref"), queue.rx_ring.1);
            match &queue.rx_port {
                Some(rx) => {
                    self.put(&at("event-channel-tx"), queue.tx_port.number().0);
                    self.put(&at("event-channel-rx"), rx.number().0);
                }
                None => self.put(&at("event-channel"), queue.tx_port.number().0),
            }
        }
        if spec.control {
            let control_ring = RawControlRing::new(self);
            self.put("ctrl-ring-ref", control_ring.ring.1);
            self.put("event-channel-ctrl", control_ring.port.number().0);
            self.control_ring = Some(control_ring);
        }
        for (key, value) in spec.keys {
            self.put(key, value);
        }
    }
}

impl InterfaceQueue for FrontQueue {
    /// Makes rings and tells of them.
    fn connect(front: &mut Front) {
        wait(|| front.back_state() == Some(2));
        front.make();
        front.put("state", 4);
    }

    fn send(&self, frame: &[u8]) {
        FrontQueue::send(self, frame, 0, None);
    }

    fn received(&self) -> Vec<Received> {
        FrontQueue::received(self)
    }
}
