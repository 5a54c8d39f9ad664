//! A queue of a frontend that is made by hand.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use hypervisor::test::{Guest, Port};
use hypervisor::{Channel, DomId, GrantRef, PAGE};
use ring::xen::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS, ring_size_in};
use xen::blkif::layout::{LEN_32, LEN_64, Layout};

use super::{DISCARD, FLUSH, Front, INDIRECT, READ, SECTOR, WRITE, wait};

/// A page that is granted: its number, its reference.
pub type Granted = (u32, GrantRef);

/// A part of a page, in sectors.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub page: GrantRef,
    pub first: u8,
    pub last: u8,
}

impl Segment {
    fn bytes(self) -> [u8; 8] {
        let [a, b, c, d] = self.page.0.to_le_bytes();
        [a, b, c, d, self.first, self.last, 0xaa, 0xaa]
    }
}

/// A request that was sent.
#[derive(Debug)]
pub struct Io {
    pub id: u64,
    operation: u8,
    /// The page of each segment, and where its bytes are there.
    parts: Vec<(Granted, usize, usize)>,
    list: Option<Granted>,
}

pub struct FrontQueue {
    guest: Rc<Guest>,
    layout: Layout,
    pub ring: Vec<Granted>,
    pub size: u32,
    pub port: Port,
    prod: Cell<u32>,
    cons: Cell<u32>,
    next_id: Cell<u64>,
    /// Pages that are granted and not in use.
    free: RefCell<Vec<Granted>>,
    /// Responses that nobody has waited for.
    responses: RefCell<BTreeMap<u64, (u8, i16)>>,
    /// Where in its first page the data of a request begins, in sectors.
    pub shift: Cell<u8>,
}

impl FrontQueue {
    pub fn new(front: &Front) -> FrontQueue {
        let (guest, spec) = (&front.guest, &front.spec);
        let layout = spec.layout.unwrap_or(Layout::Bits32);
        let pages = 1 << spec.order.unwrap_or(0);
        let grant = |page| (page, guest.grant(DomId(0), page, true));
        let (ring, data) = (front.pages(pages), front.pages(700));
        let queue = FrontQueue {
            guest: Rc::clone(guest),
            layout,
            ring: (ring..ring + pages).map(grant).collect(),
            size: ring_size_in(pages as usize, slot_len(layout)),
            port: guest.open(DomId(0)).unwrap(),
            prod: Cell::new(spec.start),
            cons: Cell::new(spec.start),
            next_id: Cell::new(0x1_0000_0001),
            free: RefCell::new((data..data + 700).map(grant).collect()),
            responses: RefCell::default(),
            shift: Cell::new(0),
        };
        for index in [REQ_PROD, RSP_PROD] {
            queue.set(index, spec.start);
        }
        for index in [REQ_EVENT, RSP_EVENT] {
            queue.set(index, spec.start.wrapping_add(1));
        }
        queue
    }

    fn address(&self, at: u64) -> u64 {
        u64::from(self.ring[0].0) * PAGE as u64 + at
    }

    pub fn get(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.guest.memory().read(self.address(at), &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    pub fn set(&self, at: u64, value: u32) {
        self.write_ring(at, &value.to_le_bytes());
    }

    fn write_ring(&self, at: u64, bytes: &[u8]) {
        self.guest.memory().write(self.address(at), bytes).unwrap();
    }

    /// Where slot number `number` is in the ring.
    pub fn slot(&self, number: u32) -> u64 {
        SLOTS + slot_len(self.layout) as u64 * u64::from(number & (self.size - 1))
    }

    /// A page that is granted.
    pub fn take_page(&self) -> Granted {
        self.free.borrow_mut().pop().expect("pages for data")
    }

    pub fn fill(&self, (page, _): Granted, offset: usize, bytes: &[u8]) {
        let at = u64::from(page) * PAGE as u64 + offset as u64;
        self.guest.memory().write(at, bytes).unwrap();
    }

    /// Writes a slot: an operation, its second byte and its third and fourth, number, first sector,
    /// and what follows.
    #[track_caller]
    pub fn slot_of(&self, head: [u8; 4], sector: u64, body: &[u8]) -> u64 {
        wait(|| {
            self.collect();
            self.prod.get().wrapping_sub(self.cons.get()) < self.size
        });
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let (at, layout) = (self.slot(self.prod.get()), self.layout);
        self.write_ring(at, &head);
        self.write_ring(at + layout.id() as u64, &id.to_le_bytes());
        self.write_ring(at + layout.sector() as u64, &sector.to_le_bytes());
        self.write_ring(at + layout.body() as u64, body);
        self.prod.set(self.prod.get().wrapping_add(1));
        id
    }

    /// Sends nothing yet: a request with these segments.
    #[track_caller]
    pub fn direct(&self, operation: u8, sector: u64, count: u8, segments: &[Segment]) -> u64 {
        let body: Vec<u8> = segments.iter().flat_map(|segment| segment.bytes()).collect();
        self.slot_of([operation, count, 0, 0], sector, &body)
    }

    /// The same, with the segments in a page.
    #[track_caller]
    pub fn indirect(&self, operation: u8, sector: u64, count: u16, list: GrantRef) -> u64 {
        let [low, high] = count.to_le_bytes();
        let body = [[0; 4], list.0.to_le_bytes()].concat();
        self.slot_of([INDIRECT, operation, low, high], sector, &body)
    }

    /// Makes all requests visible, and tells the backend where it wants that.
    pub fn push(&self) {
        let old = self.get(REQ_PROD);
        fence(Ordering::SeqCst);
        self.set(REQ_PROD, self.prod.get());
        fence(Ordering::SeqCst);
        let new = self.prod.get();
        if new.wrapping_sub(self.get(REQ_EVENT)) < new.wrapping_sub(old) {
            self.port.notify();
        }
    }

    /// Takes the responses that have come.
    pub fn collect(&self) {
        loop {
            let prod = self.get(RSP_PROD);
            fence(Ordering::SeqCst);
            while self.cons.get() != prod {
                let at = self.slot(self.cons.get());
                let mut bytes = [0; 16];
                self.guest.memory().read(self.address(at), &mut bytes).unwrap();
                let id = u64::from_le_bytes(*bytes.first_chunk().unwrap());
                let status = i16::from_le_bytes([bytes[10], bytes[11]]);
                assert_eq!(bytes[9], 0, "padding");
                assert!(self.layout == Layout::Bits32 || bytes[12..16] == [0; 4], "padding");
                let double = self.responses.borrow_mut().insert(id, (bytes[8], status));
                assert_eq!(double, None, "two responses to {id}");
                self.cons.set(self.cons.get().wrapping_add(1));
            }
            self.set(RSP_EVENT, prod.wrapping_add(1));
            fence(Ordering::SeqCst);
            if self.get(RSP_PROD) == prod {
                return;
            }
        }
    }

    /// Waits for the response to a request: its operation and status.
    #[track_caller]
    pub fn response(&self, id: u64) -> (u8, i16) {
        wait(|| {
            self.collect();
            self.responses.borrow().contains_key(&id)
        });
        self.responses.borrow_mut().remove(&id).unwrap()
    }

    /// Waits for the end of a request, and gives its pages back. What was read is in them still.
    #[track_caller]
    pub fn end(&self, io: &Io) -> i16 {
        let (operation, status) = self.response(io.id);
        assert_eq!(operation, io.operation);
        let pages = io.parts.iter().map(|(page, ..)| *page).chain(io.list);
        self.free.borrow_mut().extend(pages);
        status
    }

    /// What is in the pages of a request.
    pub fn data(&self, io: &Io) -> Vec<u8> {
        let part = |((page, _), offset, len): &(Granted, usize, usize)| {
            let mut bytes = vec![0; *len];
            let at = u64::from(*page) * PAGE as u64 + *offset as u64;
            self.guest.memory().read(at, &mut bytes).unwrap();
            bytes
        };
        io.parts.iter().flat_map(part).collect()
    }

    /// Pages for so many bytes, of which the first is not at the start.
    fn parts(&self, len: usize) -> Vec<(Granted, usize, usize)> {
        let (mut offset, mut left) = (usize::from(self.shift.get()) * SECTOR, len);
        let mut parts = Vec::new();
        while left > 0 {
            let now = left.min(PAGE - offset);
            parts.push((self.take_page(), offset, now));
            (offset, left) = (0, left - now);
        }
        parts
    }

    #[track_caller]
    fn start(&self, operation: u8, sector: u64, parts: Vec<(Granted, usize, usize)>) -> Io {
        let segment = |(page, offset, len): &(Granted, usize, usize)| Segment {
            page: page.1,
            first: (offset / SECTOR) as u8,
            last: ((offset + len) / SECTOR - 1) as u8,
        };
        let segments: Vec<Segment> = parts.iter().map(segment).collect();
        let mut list = None;
        let id = if segments.len() <= 11 {
            self.direct(operation, sector, segments.len() as u8, &segments)
        } else {
            let page = self.take_page();
            let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.bytes()).collect();
            self.fill(page, 0, &bytes);
            list = Some(page);
            self.indirect(operation, sector, segments.len() as u16, page.1)
        };
        Io { id, operation, parts, list }
    }

    /// A request to write, which is not pushed.
    #[track_caller]
    pub fn start_write(&self, sector: u64, bytes: &[u8]) -> Io {
        let parts = self.parts(bytes.len());
        let mut rest = bytes;
        for (page, offset, len) in &parts {
            let (now, later) = rest.split_at(*len);
            self.fill(*page, *offset, now);
            rest = later;
        }
        self.start(WRITE, sector, parts)
    }

    /// A request to read, which is not pushed.
    #[track_caller]
    pub fn start_read(&self, sector: u64, sectors: usize) -> Io {
        self.start(READ, sector, self.parts(sectors * SECTOR))
    }

    #[track_caller]
    pub fn start_flush(&self) -> Io {
        // As Linux sends them: the sector of a flush is no sector.
        let id = self.direct(FLUSH, u64::MAX, 0, &[]);
        Io { id, operation: FLUSH, parts: Vec::new(), list: None }
    }

    #[track_caller]
    pub fn start_discard(&self, sector: u64, sectors: u64) -> Io {
        let id = self.slot_of([DISCARD, 0, 0, 0], sector, &sectors.to_le_bytes());
        Io { id, operation: DISCARD, parts: Vec::new(), list: None }
    }
}

fn slot_len(layout: Layout) -> usize {
    match layout {
        Layout::Bits64 => LEN_64,
        Layout::Bits32 => LEN_32,
    }
}
