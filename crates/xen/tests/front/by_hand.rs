//! A frontend that is made by hand, slot by slot: it can do whatever it likes.

use super::interface::{Interface, InterfaceQueue};
use super::{FrontQueue, Mailbox, Received, wait};

/// A frontend that is made by hand.
pub type Front = Interface<FrontQueue>;

impl Front {
    /// Makes rings and writes all keys, but not the state.
    pub fn make(&mut self) {
        let nature = self.nature.clone();
        self.queues = (0..nature.queues).map(|_| FrontQueue::new(self)).collect();
        let flag = |on: bool| u8::from(on);
        self.put("request-rx-copy", 1);
        self.put("feature-rx-notify", 1);
        self.put("feature-sg", flag(nature.sg));
        self.put("feature-gso-tcpv4", flag(nature.gso));
        self.put("feature-gso-tcpv6", flag(nature.gso));
        self.put("feature-no-csum-offload", flag(!nature.csum));
        self.put("feature-ipv6-csum-offload", flag(nature.csum));
        if nature.queues > 1 {
            self.put("multi-queue-num-queues", nature.queues);
        }
        for (n, queue) in self.queues.iter().enumerate() {
            let at = |key: &str| {
                if nature.queues == 1 { key.to_string() } else { format!("queue-{n}/{key}") }
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
        if nature.control {
            let mailbox = Mailbox::new(self);
            self.put("ctrl-ring-ref", mailbox.ring.1);
            self.put("event-channel-ctrl", mailbox.port.number().0);
            self.mailbox = Some(mailbox);
        }
        for (key, value) in nature.keys {
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
