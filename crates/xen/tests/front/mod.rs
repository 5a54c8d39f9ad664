//! A small frontend, kind unless told otherwise, and a host to try it on.
#![allow(dead_code)]

pub mod fair;
pub mod station;
pub mod tcp;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::test::{Design, Device, Guest, Machine, Port};
use hypervisor::{Channel, DomId, GrantRef, PAGE};
use network::fabric::{Fabric, Workers};
use xen::netif::service::{Service, ServiceConfig};
use xen::netif::status::{Condition, VifStatus};

use xen::netif::options::PortOptions;

pub const REQ_PROD: u64 = 0;
pub const REQ_EVENT: u64 = 4;
pub const RSP_PROD: u64 = 8;
pub const RSP_EVENT: u64 = 12;
pub const SLOTS: u64 = 64;
const SIZE: u32 = 256;
/// Pages that a queue sends from.
const SENDING: u32 = 128;

pub const CSUM_BLANK: u16 = 1;
pub const MORE_DATA: u16 = 4;
pub const EXTRA_INFO: u16 = 8;

/// Waits for something that must come; a minute is for ever.
#[track_caller]
pub fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A host with a daemon.
pub struct Host {
    pub machine: Machine,
    pub fabric: Arc<Fabric>,
    pub service: Option<Service>,
    pub options: PortOptions,
}

impl Host {
    pub fn new() -> Host {
        Host::with(4, Duration::from_secs(60))
    }

    pub fn with(queues: u16, stall: Duration) -> Host {
        Host::on(Machine::new(), queues, stall)
    }

    /// One of that inner design.
    pub fn of(design: Design) -> Host {
        Host::on(Machine::of(design), 4, Duration::from_secs(60))
    }

    fn on(machine: Machine, queues: u16, stall: Duration) -> Host {
        let mut host =
            Host { machine, fabric: fabric(), service: None, options: PortOptions::default() };
        host.serve(queues, stall);
        host
    }

    /// One that serves with these switches.
    pub fn switched(options: PortOptions) -> Host {
        Host::designed(Design::default(), options)
    }

    /// One of that inner design that serves with these switches.
    pub fn designed(design: Design, options: PortOptions) -> Host {
        let mut host = Host { machine: Machine::of(design), options, ..Host::bare() };
        host.serve(4, Duration::from_secs(60));
        host
    }

    /// Nobody serves.
    pub fn bare() -> Host {
        Host {
            machine: Machine::new(),
            fabric: fabric(),
            service: None,
            options: PortOptions::default(),
        }
    }

    fn serve(&mut self, queues: u16, stall: Duration) {
        let config = ServiceConfig { queues, stall, options: self.options };
        let hypervisor = self.machine.hypervisor(DomId(0));
        self.service = Some(Service::start(Arc::clone(&self.fabric), hypervisor, config).unwrap());
    }

    /// Ends the daemon and starts another, which knows nothing of the first.
    pub fn restart(&mut self) {
        self.service = None;
        self.fabric = fabric();
        self.serve(4, Duration::from_secs(60));
    }

    pub fn vif(&self, front: &Vif) -> Option<VifStatus> {
        let vifs = self.service.as_ref().unwrap().vifs();
        vifs.into_iter()
            .find(|vif| vif.id.domain == front.guest.id() && vif.id.handle == front.handle)
    }

    /// Waits until the vif is stopped; for what.
    #[track_caller]
    pub fn stopped(&self, front: &Vif) -> String {
        wait(|| self.vif(front).is_some_and(|vif| vif.violations > 0));
        let node = format!(
            "/local/domain/0/error/backend/vif/{}/{}/error",
            front.guest.id(),
            front.handle
        );
        let store = self.machine.hypervisor(DomId(0)).store;
        let reason = self.vif(front).unwrap().reason.unwrap();
        assert_eq!(store.nodes().text(&node).unwrap(), reason, "the error node");
        assert_eq!(self.vif(front).unwrap().condition, Condition::Stopped);
        assert_eq!(front.back_state(), Some(5));
        reason
    }

    pub fn connected(&self, front: &Vif) -> bool {
        self.vif(front).is_some_and(|vif| vif.condition == Condition::Connected)
    }
}

fn fabric() -> Arc<Fabric> {
    Arc::new(Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap())
}

/// What a frontend is like.
#[derive(Clone)]
pub struct Nature {
    pub queues: u32,
    /// Separate event channels for both directions.
    pub split: bool,
    pub sg: bool,
    pub gso: bool,
    pub csum: bool,
    /// Pages that it posts to receive into, per queue.
    pub post: u32,
    pub control: bool,
    /// Grants its receive pages for reading only.
    pub read_only: bool,
    /// Where the indices of its rings begin.
    pub start: u32,
    /// Further keys of its own, and of the backend.
    pub keys: Vec<(&'static str, &'static str)>,
    pub back_keys: Vec<(&'static str, &'static str)>,
}

impl Default for Nature {
    fn default() -> Self {
        Nature {
            queues: 1,
            split: true,
            sg: true,
            gso: true,
            csum: true,
            post: 200,
            control: false,
            read_only: false,
            start: 0,
            keys: vec![],
            back_keys: vec![],
        }
    }
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub frame: Vec<u8>,
    pub blank: bool,
    pub validated: bool,
    pub gso: Option<(u8, u16)>,
}

/// A vif as the store has it, and the domain that it belongs to.
pub struct Vif {
    pub guest: Rc<Guest>,
    pub handle: u32,
    pub nature: Nature,
    machine: Machine,
    next_page: Rc<Cell<u32>>,
}

/// A frontend that is made by hand, slot by slot: it can do whatever it likes.
pub struct Front {
    vif: Vif,
    pub queues: Vec<FrontQueue>,
    pub mailbox: Option<Mailbox>,
}

impl Deref for Front {
    type Target = Vif;

    fn deref(&self) -> &Vif {
        &self.vif
    }
}

impl DerefMut for Front {
    fn deref_mut(&mut self) -> &mut Vif {
        &mut self.vif
    }
}

impl Vif {
    /// A domain with a vif that waits.
    fn attached(host: &Host, domain: u16, nature: Nature) -> Vif {
        let guest = Rc::new(host.machine.guest(DomId(domain), 24_576).unwrap());
        let vif = Vif {
            guest,
            handle: 0,
            nature,
            machine: host.machine.clone(),
            next_page: Rc::default(),
        };
        vif.attach();
        vif
    }

    /// Another of the same domain.
    fn sibling(&self, handle: u32, nature: Nature) -> Vif {
        let (guest, next_page) = (Rc::clone(&self.guest), Rc::clone(&self.next_page));
        let vif = Vif { guest, handle, nature, machine: self.machine.clone(), next_page };
        vif.attach();
        vif
    }

    /// What toolstack and hotplug script do.
    pub fn attach(&self) {
        let keys =
            [vec![("script", "/etc/xen/scripts/vif-ringmain")], self.nature.back_keys.clone()]
                .concat();
        self.device(|device| {
            self.machine.attach(&Device { backend_keys: &keys, ..*device }).unwrap()
        });
        let store = self.machine.hypervisor(DomId(0)).store;
        store.nodes().put(&format!("{}/hotplug-status", self.back()), "connected").unwrap();
    }

    pub fn device<T>(&self, with: impl FnOnce(&Device<'_>) -> T) -> T {
        with(&Device {
            class: "vif",
            handle: self.handle,
            frontend: self.guest.id(),
            backend: DomId(0),
            frontend_keys: &[],
            backend_keys: &[],
        })
    }

    pub fn back(&self) -> String {
        self.device(|device| device.backend_path())
    }

    pub fn put(&self, key: &str, value: impl std::fmt::Display) {
        let path = self.device(|device| device.frontend_path());
        self.guest.store().nodes().put(&format!("{path}/{key}"), value).unwrap();
    }

    pub fn remove(&self, key: &str) {
        let path = self.device(|device| device.frontend_path());
        self.guest.store().nodes().remove(&format!("{path}/{key}")).unwrap();
    }

    /// Sets a key of the backend, as the toolstack or the hotplug script does.
    pub fn put_back(&self, key: &str, value: impl std::fmt::Display) {
        let store = self.machine.hypervisor(DomId(0)).store;
        store.nodes().put(&format!("{}/{key}", self.back()), value).unwrap();
    }

    /// Closes as Linux' frontend does, and begins anew.
    pub fn begin_anew(&self) {
        self.put("state", 5);
        wait(|| matches!(self.back_state(), Some(5 | 6)));
        self.put("state", 6);
        wait(|| self.back_state() == Some(6));
        self.put("state", 1);
    }

    pub fn back_key(&self, key: &str) -> Option<String> {
        let store = self.machine.hypervisor(DomId(0)).store;
        store.nodes().find(&format!("{}/{key}", self.back())).unwrap()
    }

    pub fn back_state(&self) -> Option<u32> {
        self.back_key("state")?.parse().ok()
    }

    pub fn page(&self) -> u32 {
        let page = self.next_page.get();
        self.next_page.set(page + 1);
        page
    }
}

impl Front {
    /// A domain with one vif that is connected.
    pub fn connected(host: &Host, domain: u16, nature: Nature) -> Front {
        let mut front = Front::attached(host, domain, nature);
        front.connect();
        wait(|| host.connected(&front));
        front
    }

    /// A domain with one vif that waits.
    pub fn attached(host: &Host, domain: u16, nature: Nature) -> Front {
        Front { vif: Vif::attached(host, domain, nature), queues: vec![], mailbox: None }
    }

    /// Another vif of the same domain.
    pub fn sibling(&self, handle: u32, nature: Nature) -> Front {
        Front { vif: self.vif.sibling(handle, nature), queues: vec![], mailbox: None }
    }

    /// Waits for the backend, makes rings and tells of them.
    pub fn connect(&mut self) {
        wait(|| self.back_state() == Some(2));
        self.make();
        self.put("state", 4);
    }

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

    /// Sends a frame on queue 0.
    pub fn send(&self, frame: &[u8]) {
        self.queues[0].send(frame, 0, None);
    }

    /// All frames that came, on whatever queue, but for greetings.
    pub fn received(&self) -> Vec<Received> {
        let all = self.queues.iter().flat_map(FrontQueue::received);
        all.filter(|got| !is_greeting(&got.frame)).collect()
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
    /// Frames that came without being any.
    pub spoiled: Cell<u32>,
}

impl FrontQueue {
    fn new(front: &Front) -> FrontQueue {
        let (guest, start) = (&front.guest, front.nature.start);
        let grant = |writable| {
            let page = front.page();
            (page, guest.grant(DomId(0), page, writable))
        };
        let queue = FrontQueue {
            guest: Rc::clone(guest),
            tx_ring: grant(true),
            rx_ring: grant(true),
            tx_port: guest.open(DomId(0)).unwrap(),
            rx_port: front.nature.split.then(|| guest.open(DomId(0)).unwrap()),
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
        for _ in 0..front.nature.post {
            queue.post(grant(!front.nature.read_only));
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

    /// Queues a frame without telling; slots as a driver would choose them, at odd offsets.
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

    /// Takes a frame; `None`: one that was spoiled.
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

/// A control ring.
pub struct Mailbox {
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

impl Mailbox {
    fn new(front: &Front) -> Mailbox {
        let guest = &front.guest;
        let grant = |writable| {
            let page = front.page();
            (page, guest.grant(DomId(0), page, writable))
        };
        let mailbox = Mailbox {
            guest: Rc::clone(guest),
            ring: grant(true),
            page: grant(false),
            list: grant(true),
            port: guest.open(DomId(0)).unwrap(),
            prod: Cell::new(0),
            cons: Cell::new(0),
        };
        mailbox.set(REQ_EVENT, 1);
        mailbox.set(RSP_EVENT, 1);
        mailbox
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

/// The address of station `n`.
pub fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// A frame from station to station with so many bytes behind the header, which say what they are.
pub fn frame(from: u8, to: u8, len: usize, what: u32) -> Vec<u8> {
    let body = (0..len as u32).map(|i| (i.wrapping_mul(31).wrapping_add(what) >> 2) as u8);
    [
        mac(to).to_vec(),
        mac(from).to_vec(),
        vec![0x88, 0xb5],
        what.to_le_bytes().to_vec(),
        body.collect(),
    ]
    .concat()
}

/// What a frame says that it is.
pub fn what(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[14..18].try_into().unwrap())
}

/// What greetings say, which find their way wherever nobody is known yet.
const GREETING: u32 = 0xfeed_beef;

fn is_greeting(frame: &[u8]) -> bool {
    frame.len() >= 18 && frame[12..18] == [0x88, 0xb5, 0xef, 0xbe, 0xed, 0xfe]
}

/// A frontend of either kind that sends and receives.
pub trait Peer {
    /// Sends a frame on queue 0.
    fn greet(&self, frame: &[u8]);
    /// All frames that came, greetings too.
    fn heard(&self) -> Vec<Received>;
}

impl Peer for Front {
    fn greet(&self, frame: &[u8]) {
        self.send(frame);
    }

    fn heard(&self) -> Vec<Received> {
        self.queues.iter().flat_map(FrontQueue::received).collect()
    }
}

/// Both know where the other is.
#[track_caller]
pub fn introduce((a, x): (&impl Peer, u8), (b, y): (&impl Peer, u8)) {
    greet((a, x), (b, y));
    greet((b, y), (a, x));
}

/// [`introduce`], with greetings that are sent again until one arrives in each direction.
#[track_caller]
pub fn introduce_repeatedly((a, x): (&impl Peer, u8), (b, y): (&impl Peer, u8)) {
    let (mut there, mut back) = (false, false);
    wait(|| {
        a.greet(&frame(x, y, 40, GREETING));
        b.greet(&frame(y, x, 40, GREETING));
        let greets =
            |got: &Received, from| is_greeting(&got.frame) && got.frame[6..12] == mac(from);
        there |= b.heard().iter().any(|got| greets(got, x));
        back |= a.heard().iter().any(|got| greets(got, y));
        there && back
    });
}

#[track_caller]
fn greet((from, x): (&impl Peer, u8), (to, y): (&impl Peer, u8)) {
    from.greet(&frame(x, y, 40, GREETING));
    wait(|| to.heard().iter().any(|got| is_greeting(&got.frame) && got.frame[6..12] == mac(x)));
}
