//! This project's own frontend, with the same interface as the one that is made by hand.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::Domain;
use xen::netif::frontend::{Frame, FrameSource, Frontend, FrontendConfig, PageAllocator, Queue};
use xen::netif::slots::Meta;
use xen::xenbus::State;

use super::interface::{Interface, InterfaceQueue};
use super::{CSUM_BLANK, Received, wait};

/// How long anything may take.
const LONG: Duration = Duration::from_secs(60);

/// A vif with our own frontend. Of its spec count queues, split channels, control ring, and
/// whether it takes offloads, all of them or none.
pub type Netfront = Interface<NetfrontQueue>;

impl Netfront {
    /// Pages that no other vif of the domain has.
    fn area(&self, queues: u16) -> PageAllocator {
        let pages = Frontend::pages(queues);
        let first = (0..pages).map(|_| self.page()).min();
        PageAllocator::new(first.unwrap_or(0), pages)
    }
}

impl InterfaceQueue for NetfrontQueue {
    fn connect(front: &mut Netfront) {
        front.queues.clear();
        let spec = front.spec.clone();
        assert!((spec.sg == spec.gso) && (spec.gso == spec.csum), "all or none");
        let domain: Arc<dyn Domain> = front.guest.domain().clone();
        let frontend = Frontend::find(domain, front.handle).unwrap();
        assert!(frontend.bus().wait(LONG, |state| state == State::InitWait).unwrap());
        spec.keys.iter().for_each(|(key, value)| front.put(key, value));
        let config = FrontendConfig {
            queues: spec.queues as u16,
            split: spec.split,
            control: spec.control,
            offloads: spec.sg,
            ..FrontendConfig::default()
        };
        let (queues, _) = frontend.connect(&config, front.area(config.queues)).unwrap();
        assert_eq!(queues.len(), spec.queues as usize);
        front.queues = queues.into_iter().map(|queue| NetfrontQueue(RefCell::new(queue))).collect();
    }

    #[track_caller]
    fn send(&self, frame: &[u8]) {
        NetfrontQueue::send(self, frame, 0, None);
    }

    fn received(&self) -> Vec<Received> {
        NetfrontQueue::received(self)
    }
}

/// A queue.
pub struct NetfrontQueue(RefCell<Queue>);

impl NetfrontQueue {
    /// Queues a frame without a signal, once there is room.
    #[track_caller]
    pub fn queue(&self, frame: &[u8], flags: u16, gso: Option<(u8, u16)>) {
        let tx = &mut self.0.borrow_mut().tx;
        wait(|| {
            tx.collect().unwrap();
            tx.place().is_some()
        });
        tx.ring().memory().write(tx.place().unwrap(), frame).unwrap();
        assert!(tx.send(frame.len(), Meta { csum_blank: flags & CSUM_BLANK != 0, gso }).unwrap());
    }

    pub fn push_tx(&self) {
        self.0.borrow_mut().tx.flush().unwrap();
    }

    #[track_caller]
    pub fn send(&self, frame: &[u8], flags: u16, gso: Option<(u8, u16)>) {
        self.queue(frame, flags, gso);
        self.push_tx();
    }

    /// Whether everything that was sent was answered.
    pub fn is_idle(&self) -> bool {
        let tx = &mut self.0.borrow_mut().tx;
        tx.collect().unwrap();
        tx.is_idle()
    }

    /// Frames that the backend has refused, or has not delivered whole.
    pub fn troubles(&self) -> u64 {
        let queue = self.0.borrow();
        queue.tx.refused() + queue.rx.failed()
    }

    /// Takes the frames that came, and posts their pages again.
    pub fn received(&self) -> Vec<Received> {
        let rx = &mut self.0.borrow_mut().rx;
        let (mut all, mut got) = (Vec::new(), Frame::default());
        while rx.next(&mut got).unwrap() {
            let mut frame = Vec::new();
            for (addr, len) in &got.pieces {
                let mut bytes = vec![0; *len as usize];
                rx.ring().memory().read(*addr, &mut bytes).unwrap();
                frame.extend(bytes);
            }
            let Meta { csum_blank: blank, gso } = got.meta;
            all.push(Received { frame, blank, validated: got.validated, gso });
        }
        rx.post().unwrap();
        all
    }
}
