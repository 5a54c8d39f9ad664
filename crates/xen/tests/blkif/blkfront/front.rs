//! A vbd as the store has it, and its frontend.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use hypervisor::DomId;
use hypervisor::test::{Device, Guest, Machine};
use xen::blkif::layout::Layout;

use super::{FrontQueue, Host, Io, wait};

/// Pages of the guest.
const PAGES: u32 = 8192;

/// Properties of a frontend.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The layout of its slots; `None`: it names none, and has that of a 32-bit one.
    pub layout: Option<Layout>,
    pub queues: u32,
    /// The order of its rings, if it gives one.
    pub order: Option<u32>,
    /// Where the indices of its rings begin.
    pub start: u32,
    /// Its grants are persistent.
    pub persistent: bool,
    /// Further keys of the backend.
    pub back_keys: Vec<(&'static str, &'static str)>,
}

impl Default for Spec {
    fn default() -> Self {
        let layout = Some(Layout::NATIVE);
        let back_keys = Vec::new();
        Spec { layout, queues: 1, order: None, start: 0, persistent: false, back_keys }
    }
}

/// A vbd, its domain, and its frontend.
pub struct Front {
    pub guest: Rc<Guest>,
    pub spec: Spec,
    pub image: PathBuf,
    pub queues: Vec<FrontQueue>,
    machine: Machine,
    next_page: Rc<Cell<u32>>,
}

impl Front {
    /// A domain with a vbd that is connected, over a new image.
    #[track_caller]
    pub fn connected(host: &Host, domain: u16, spec: Spec) -> Front {
        let image = host.new_image(&format!("{domain}.raw"));
        let mut front = Front::attached(host, domain, spec, &image);
        front.connect();
        wait(|| host.is_connected(&front));
        front
    }

    /// A domain with a vbd that waits.
    pub fn attached(host: &Host, domain: u16, spec: Spec, image: &Path) -> Front {
        let guest = Rc::new(host.machine.guest(DomId(domain), PAGES).unwrap());
        let front = Front {
            guest,
            spec,
            image: image.to_owned(),
            queues: Vec::new(),
            machine: host.machine.clone(),
            next_page: Rc::default(),
        };
        front.attach();
        front
    }

    /// Creates the device as toolstack and hotplug script do.
    pub fn attach(&self) {
        let image = self.image.to_str().unwrap();
        let ours = vec![
            ("script", "/etc/xen/scripts/block-ringmain"),
            ("mode", "w"),
            ("device-type", "disk"),
            ("removable", "0"),
            ("params", image),
            ("physical-device-path", image),
        ];
        let keys = [ours, self.spec.back_keys.clone()].concat();
        self.device(|device| {
            self.machine.attach(&Device { backend_keys: &keys, ..*device }).unwrap()
        });
        self.put_back("hotplug-status", "connected");
    }

    pub fn device<T>(&self, with: impl FnOnce(&Device<'_>) -> T) -> T {
        with(&Device {
            class: "vbd",
            handle: 51712,
            frontend: self.guest.id(),
            backend: DomId(0),
            frontend_keys: &[],
            backend_keys: &[],
        })
    }

    pub fn put(&self, key: &str, value: impl std::fmt::Display) {
        let path = self.device(|device| device.frontend_path());
        self.guest.store().nodes().put(&format!("{path}/{key}"), value).unwrap();
    }

    pub fn put_back(&self, key: &str, value: impl std::fmt::Display) {
        let store = self.machine.hypervisor(DomId(0)).store;
        let path = self.device(|device| device.backend_path());
        store.nodes().put(&format!("{path}/{key}"), value).unwrap();
    }

    pub fn remove_back(&self, key: &str) {
        let store = self.machine.hypervisor(DomId(0)).store;
        let path = self.device(|device| device.backend_path());
        store.nodes().remove(&format!("{path}/{key}")).unwrap();
    }

    pub fn back_key(&self, key: &str) -> Option<String> {
        let store = self.machine.hypervisor(DomId(0)).store;
        let path = self.device(|device| device.backend_path());
        store.nodes().find(&format!("{path}/{key}")).unwrap()
    }

    pub fn back_number(&self, key: &str) -> Option<u64> {
        self.back_key(key)?.parse().ok()
    }

    pub fn back_state(&self) -> Option<u64> {
        self.back_number("state")
    }

    /// So many pages that follow each other.
    pub fn pages(&self, count: u32) -> u32 {
        let page = self.next_page.get();
        self.next_page.set(page + count);
        assert!(page + count <= PAGES, "the guest has no pages left");
        page
    }

    /// Makes rings and writes all keys, but not the state.
    pub fn make(&mut self) {
        let spec = self.spec.clone();
        self.queues = (0..spec.queues).map(|_| FrontQueue::new(self)).collect();
        if let Some(layout) = spec.layout {
            self.put("protocol", layout.name());
        }
        if let Some(order) = spec.order {
            self.put("ring-page-order", order);
        }
        self.put("feature-persistent", u8::from(spec.persistent));
        self.put("multi-queue-num-queues", spec.queues);
        for (n, queue) in self.queues.iter().enumerate() {
            let at = |key: &str| match spec.queues {
                1 => key.to_owned(),
                _ => format!("queue-{n}/{key}"),
            };
            for (page, (_, reference)) in queue.ring.iter().enumerate() {
                match spec.order {
                    None => self.put(&at("ring-ref"), reference),
                    Some(_) => self.put(&at(&format!("ring-ref{page}")), reference),
                }
            }
            self.put(&at("event-channel"), queue.port.number().0);
        }
    }

    /// Connects as Linux' frontend does.
    #[track_caller]
    pub fn connect(&mut self) {
        wait(|| self.back_state() == Some(2));
        self.make();
        self.put("state", 3);
        wait(|| self.back_state() == Some(4));
        self.put("state", 4);
    }

    /// Closes as Linux' frontend does, and returns to the first state.
    #[track_caller]
    pub fn close(&self) {
        self.put("state", 5);
        wait(|| matches!(self.back_state(), Some(5 | 6)));
        self.put("state", 6);
        wait(|| self.back_state() == Some(6));
    }

    /// Writes `bytes` by one request of queue `queue`. Returns its status.
    #[track_caller]
    pub fn write(&self, queue: usize, sector: u64, bytes: &[u8]) -> i16 {
        let io = self.queues[queue].start_write(sector, bytes);
        self.end(queue, &io)
    }

    /// Reads by one request of queue `queue`. Returns its status, and what was read.
    #[track_caller]
    pub fn read(&self, queue: usize, sector: u64, sectors: usize) -> (i16, Vec<u8>) {
        let io = self.queues[queue].start_read(sector, sectors);
        let status = self.end(queue, &io);
        (status, self.queues[queue].data(&io))
    }

    /// Waits for the end of a request, and gives back its pages.
    #[track_caller]
    pub fn end(&self, queue: usize, io: &Io) -> i16 {
        self.queues[queue].push();
        self.queues[queue].end(io)
    }
}
