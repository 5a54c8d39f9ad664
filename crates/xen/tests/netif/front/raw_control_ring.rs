//! A control ring that is written by hand.

use std::cell::Cell;
use std::rc::Rc;

use hypervisor::test::{Guest, Port};
use hypervisor::{Channel, DomId, GrantRef, PAGE};

use super::{Front, Granted, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS, wait};

/// A control ring.
pub struct RawControlRing {
    guest: Rc<Guest>,
    pub ring: Granted,
    pub port: Port,
    /// A page for keys and tables.
    pub page: Granted,
    /// A page for lists that come back with marks.
    pub list: Granted,
    prod: Cell<u32>,
    cons: Cell<u32>,
}

impl RawControlRing {
    pub fn new(front: &Front) -> RawControlRing {
        let guest = &front.guest;
        let grant = |writable| {
            let page = front.page();
            (page, guest.grant(DomId(0), page, writable))
        };
        let control_ring = RawControlRing {
            guest: Rc::clone(guest),
            ring: grant(true),
            page: grant(false),
            list: grant(true),
            port: guest.open(DomId(0)).unwrap(),
            prod: Cell::new(0),
            cons: Cell::new(0),
        };
        control_ring.set(REQ_EVENT, 1);
        control_ring.set(RSP_EVENT, 1);
        control_ring
    }

    fn get(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.guest.memory().read(u64::from(self.ring.0) * PAGE as u64 + at, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn set(&self, at: u64, value: u32) {
        self.guest
            .memory()
            .write(u64::from(self.ring.0) * PAGE as u64 + at, &value.to_le_bytes())
            .unwrap();
    }

    /// Posts a message without waiting for the answer.
    pub fn post(&self, kind: u16, data: [u32; 3]) {
        let at = self.prod.get();
        let slot = SLOTS + 16 * u64::from(at % 128);
        self.set(slot, at & 0xffff | u32::from(kind) << 16);
        (0..).zip(data).for_each(|(n, word)| self.set(slot + 4 + 4 * n, word));
        self.prod.set(at.wrapping_add(1));
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.set(REQ_PROD, at.wrapping_add(1));
        self.port.notify();
    }

    pub fn answered(&self) -> u32 {
        self.get(RSP_PROD)
    }

    /// Asks, and waits for status and data of the answer.
    #[track_caller]
    pub fn ask(&self, kind: u16, data: [u32; 3]) -> (u32, u32) {
        self.post(kind, data);
        self.answer()
    }

    /// Waits for status and data of the next answer.
    #[track_caller]
    pub fn answer(&self) -> (u32, u32) {
        let at = self.cons.get();
        wait(|| self.answered() == at.wrapping_add(1));
        self.cons.set(at.wrapping_add(1));
        let slot = SLOTS + 16 * u64::from(at % 128);
        assert_eq!(self.get(slot) as u16, at as u16, "answers come in order");
        (self.get(slot + 4), self.get(slot + 8))
    }

    /// Writes a list of entries into the page for lists, each a reference and flags, and asks
    /// something about it.
    #[track_caller]
    pub fn ask_of(&self, kind: u16, queue: u32, list: &[(GrantRef, u16)]) -> (u32, u32) {
        let bytes: Vec<u8> = list
            .iter()
            .flat_map(|(at, flags)| (u64::from(at.0) | u64::from(*flags) << 32).to_le_bytes())
            .collect();
        self.guest.memory().write(u64::from(self.list.0) * PAGE as u64, &bytes).unwrap();
        self.ask(kind, [queue, self.list.1.0, list.len() as u32])
    }

    /// The marks in the list.
    pub fn marks(&self, count: usize) -> Vec<u16> {
        let mut bytes = vec![0; count * 8];
        self.guest.memory().read(u64::from(self.list.0) * PAGE as u64, &mut bytes).unwrap();
        bytes.chunks(8).map(|entry| u16::from_le_bytes([entry[6], entry[7]])).collect()
    }

    /// Writes what a message is about into the page for that.
    pub fn write(&self, bytes: &[u8]) {
        self.guest.memory().write(u64::from(self.page.0) * PAGE as u64, bytes).unwrap();
    }
}
