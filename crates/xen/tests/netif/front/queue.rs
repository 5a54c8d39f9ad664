//! A queue of a frontend that is made by hand: slots and grants as the test writes them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use hypervisor::test::{Guest, Port};
use hypervisor::{Channel, DomId, GrantRef, PAGE};

use super::{Front, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, Received, SLOTS, wait};

/// Slots of a ring.
const SIZE: u32 = 256;
/// Pages that a queue sends from.
const SENDING: u32 = 128;

pub const CSUM_BLANK: u16 = 1;
pub const MORE_DATA: u16 = 4;
pub const EXTRA_INFO: u16 = 8;

/// A page that is granted: its number, its reference.
pub type Granted = (u32, GrantRef);

pub struct FrontQueue {
    guest: Rc<Guest>,
    pub tx_ring: Granted,
    pub rx_ring: Granted,
    pub tx_port: Port,
    pub rx_port: Option<Port>,
    /// Pages to send from: free, and under way by slot.
    pub sending: RefCell<VecDeque<Granted>>,
    under_way: RefCell<Vec<Option<Granted>>>,
    pub tx_prod: Cell<u32>,
    tx_cons: Cell<u32>,
    /// Pages to receive into, by slot.
    pub posted: RefCell<Vec<Option<Granted>>>,
    pub rx_prod: Cell<u32>,
    rx_cons: Cell<u32>,
    /// Responses to slots, as they were sent: outcomes.
    pub outcomes: RefCell<Vec<i16>>,
    /// Whether pages that were received into are posted again.
    pub repost: Cell<bool>,
    /// Frames whose copy had failed.
    pub spoiled: Cell<u32>,
}

impl FrontQueue {
    pub fn new(front: &Front) -> FrontQueue {
        let (guest, start) = (&front.guest, front.spec.start);
        let grant = |writable| {
            let page = front.page();
            (page, guest.grant(DomId(0), page, writable))
        };
        let queue = FrontQueue {
            guest: Rc::clone(guest),
            tx_ring: grant(true),
            rx_ring: grant(true),
            tx_port: guest.open(DomId(0)).unwrap(),
            rx_port: front.spec.split.then(|| guest.open(DomId(0)).unwrap()),
            sending: (0..SENDING).map(|_| grant(false)).collect::<VecDeque<_>>().into(),
            under_way: vec![None; SIZE as usize].into(),
            tx_prod: Cell::new(start),
            tx_cons: Cell::new(start),
            posted: vec![None; SIZE as usize].into(),
            rx_prod: Cell::new(start),
            rx_cons: Cell::new(start),
            outcomes: RefCell::default(),
            repost: Cell::new(true),
            spoiled: Cell::new(0),
        };
        for ring in [queue.tx_ring, queue.rx_ring] {
            queue.set(ring, REQ_PROD, start);
            queue.set(ring, RSP_PROD, start);
            queue.set(ring, REQ_EVENT, start.wrapping_add(1));
            queue.set(ring, RSP_EVENT, start.wrapping_add(1));
        }
        for _ in 0..front.spec.post {
            queue.post(grant(!front.spec.read_only));
        }
        queue.push_rx();
        queue
    }

    pub fn get(&self, ring: Granted, at: u64) -> u32 {
        let mut word = [0; 4];
        self.guest.memory().read(u64::from(ring.0) * PAGE as u64 + at, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    pub fn set(&self, ring: Granted, at: u64, value: u32) {
        self.guest
            .memory()
            .write(u64::from(ring.0) * PAGE as u64 + at, &value.to_le_bytes())
            .unwrap();
    }

    fn bytes(&self, (page, _): Granted, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.guest
            .memory()
            .read(u64::from(page) * PAGE as u64 + offset as u64, &mut bytes)
            .unwrap();
        bytes
    }

    /// Puts a page where the backend may receive into.
    pub fn post(&self, page: Granted) {
        let at = self.rx_prod.get();
        let slot = SLOTS + 8 * u64::from(at % SIZE);
        self.posted.borrow_mut()[(at % SIZE) as usize] = Some(page);
        self.set(self.rx_ring, slot, at & 0xffff);
        self.set(self.rx_ring, slot + 4, page.1.0);
        self.rx_prod.set(at.wrapping_add(1));
    }

    pub fn push_rx(&self) {
        self.publish(
            self.rx_ring,
            self.rx_prod.get(),
            self.rx_port.as_ref().unwrap_or(&self.tx_port),
        );
    }

    fn publish(&self, ring: Granted, prod: u32, port: &Port) {
        let old = self.get(ring, REQ_PROD);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.set(ring, REQ_PROD, prod);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if prod.wrapping_sub(self.get(ring, REQ_EVENT)) < prod.wrapping_sub(old) {
            port.notify();
        }
    }

    /// Writes one slot of the Tx ring.
    pub fn tx_slot(&self, words: [u32; 3], page: Option<Granted>) {
        let at = self.tx_prod.get();
        let slot = SLOTS + 12 * u64::from(at % SIZE);
        self.under_way.borrow_mut()[(at % SIZE) as usize] = page;
        for (n, word) in (0..).zip(words) {
            self.set(self.tx_ring, slot + 4 * n, word);
        }
        self.tx_prod.set(at.wrapping_add(1));
    }

    pub fn data(&self, page: Granted, offset: u16, flags: u16, size: u16) {
        let id = self.tx_prod.get() as u16;
        let words = [
            page.1.0,
            u32::from(offset) | u32::from(flags) << 16,
            u32::from(id) | u32::from(size) << 16,
        ];
        self.tx_slot(words, Some(page));
    }

    pub fn push_tx(&self) {
        self.publish(self.tx_ring, self.tx_prod.get(), &self.tx_port);
    }

    /// A page to send from, once there is one.
    #[track_caller]
    pub fn take_page(&self) -> Granted {
        wait(|| {
            self.collect();
            !self.sending.borrow().is_empty()
        });
        self.sending.borrow_mut().pop_front().unwrap()
    }

    pub fn write(&self, page: Granted, offset: u64, bytes: &[u8]) {
        self.guest.memory().write(u64::from(page.0) * PAGE as u64 + offset, bytes).unwrap();
    }

    /// Queues a frame without a signal, in slots as a driver would choose them, at odd offsets.
    #[track_caller]
    pub fn queue(&self, frame: &[u8], flags: u16, gso: Option<(u8, u16)>) {
        // Room for the whole frame.
        wait(|| {
            self.collect();
            self.sending.borrow().len() >= 19
                && self.tx_prod.get().wrapping_sub(self.tx_cons.get()) < SIZE - 24
        });
        let first = frame.len().min(PAGE - 66);
        let rest: Vec<&[u8]> = frame[first..].chunks(PAGE).collect();
        let more = |last: bool| if last { 0 } else { MORE_DATA };
        let extra = if gso.is_some() { EXTRA_INFO } else { 0 };
        let page = self.take_page();
        self.write(page, 66, &frame[..first]);
        self.data(page, 66, flags | extra | more(rest.is_empty()), frame.len() as u16);
        if let Some((kind, size)) = gso {
            self.tx_slot([1 | u32::from(size) << 16, kind.into(), 0], None);
        }
        for (n, bytes) in rest.iter().enumerate() {
            let page = self.take_page();
            self.write(page, 0, bytes);
            self.data(page, 0, more(n + 1 == rest.len()), bytes.len() as u16);
        }
    }

    #[track_caller]
    pub fn send(&self, frame: &[u8], flags: u16, gso: Option<(u8, u16)>) {
        self.queue(frame, flags, gso);
        self.push_tx();
    }

    /// Takes the responses to what was sent.
    pub fn collect(&self) {
        loop {
            let prod = self.get(self.tx_ring, RSP_PROD);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            while self.tx_cons.get() != prod {
                let at = self.tx_cons.get();
                let word = self.get(self.tx_ring, SLOTS + 12 * u64::from(at % SIZE));
                self.outcomes.borrow_mut().push((word >> 16) as i16);
                if let Some(page) = self.under_way.borrow_mut()[(at % SIZE) as usize].take() {
                    assert_eq!(word as u16, at as u16, "the response lies in its request's slot");
                    self.sending.borrow_mut().push_back(page);
                }
                self.tx_cons.set(at.wrapping_add(1));
            }
            self.set(self.tx_ring, RSP_EVENT, prod.wrapping_add(1));
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if self.get(self.tx_ring, RSP_PROD) == prod {
                return;
            }
        }
    }

    /// Whether everything that was sent was answered.
    pub fn is_idle(&self) -> bool {
        self.collect();
        self.tx_cons.get() == self.get(self.tx_ring, REQ_PROD)
    }

    /// Takes the frames that came, and posts their pages again.
    pub fn received(&self) -> Vec<Received> {
        let mut frames = Vec::new();
        let prod = self.get(self.rx_ring, RSP_PROD);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        while self.rx_cons.get() != prod {
            frames.extend(self.frame());
        }
        self.set(self.rx_ring, RSP_EVENT, prod.wrapping_add(1));
        if self.repost.get() {
            self.push_rx();
        }
        frames
    }

    /// The next slot that came: its words, and the page that was posted in it.
    fn rx_slot(&self) -> ([u32; 2], Granted) {
        let at = self.rx_cons.get();
        assert_ne!(at, self.get(self.rx_ring, RSP_PROD), "a frame that is not whole");
        let slot = SLOTS + 8 * u64::from(at % SIZE);
        let page =
            self.posted.borrow_mut()[(at % SIZE) as usize].take().expect("a response to a request");
        self.rx_cons.set(at.wrapping_add(1));
        ([self.get(self.rx_ring, slot), self.get(self.rx_ring, slot + 4)], page)
    }

    /// Takes a frame; `None` if its copy had failed.
    fn frame(&self) -> Option<Received> {
        let mut got = Received { frame: vec![], blank: false, validated: false, gso: None };
        let (mut more, mut first, mut spoiled) = (true, true, false);
        let mut pages = Vec::new();
        while more {
            let at = self.rx_cons.get();
            let ([head, tail], page) = self.rx_slot();
            let (flags, size) = (tail as u16, (tail >> 16) as i16);
            let offset = (head >> 16) as usize;
            assert!(
                offset < 64 && offset + size.max(0) as usize <= PAGE,
                "{size} bytes at {offset}"
            );
            // What was overwritten by extra info has lost its number.
            assert!(head & 0xffff == at & 0xffff || size < 0, "number {head} in slot {at}");
            if size < 0 {
                spoiled = true;
            } else {
                got.frame.extend(self.bytes(page, offset, size as usize));
            }
            pages.push(page);
            if first {
                (got.validated, got.blank) = (flags & 1 != 0, flags & 2 != 0);
                if flags & EXTRA_INFO != 0 {
                    let ([head, tail], page) = self.rx_slot();
                    assert_eq!(head & 0xffff, 1, "segmentation, and no more");
                    got.gso = Some((tail as u8, (head >> 16) as u16));
                    pages.push(page);
                }
            }
            first = false;
            more = flags & MORE_DATA != 0;
        }
        if self.repost.get() {
            pages.into_iter().for_each(|page| self.post(page));
        }
        self.spoiled.set(self.spoiled.get() + u32::from(spoiled));
        (!spoiled).then_some(got)
    }
}
