//! Vifs as the store has them.

use std::cell::Cell;
use std::rc::Rc;

use hypervisor::DomId;
use hypervisor::test::{Device, Guest, Machine};

use super::{Host, wait};

/// Properties of a frontend.
#[derive(Clone)]
pub struct FrontSpec {
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

impl Default for FrontSpec {
    fn default() -> Self {
        FrontSpec {
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

/// A vif as the store has it, and the domain that it belongs to.
pub struct Vif {
    pub guest: Rc<Guest>,
    pub handle: u32,
    pub spec: FrontSpec,
    machine: Machine,
    next_page: Rc<Cell<u32>>,
}

impl Vif {
    /// A domain with a vif that waits.
    pub fn attached(host: &Host, domain: u16, spec: FrontSpec) -> Vif {
        let guest = Rc::new(host.machine.guest(DomId(domain), 24_576).unwrap());
        let vif =
            Vif { guest, handle: 0, spec, machine: host.machine.clone(), next_page: Rc::default() };
        vif.attach();
        vif
    }

    /// Another of the same domain.
    pub fn sibling(&self, handle: u32, spec: FrontSpec) -> Vif {
        let (guest, next_page) = (Rc::clone(&self.guest), Rc::clone(&self.next_page));
        let vif = Vif { guest, handle, spec, machine: self.machine.clone(), next_page };
        vif.attach();
        vif
    }

    /// Creates the device as toolstack and hotplug script do.
    pub fn attach(&self) {
        let keys = [vec![("script", "/etc/xen/scripts/vif-ringmain")], self.spec.back_keys.clone()]
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

    /// Closes as Linux' frontend does, and returns to the first state.
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
