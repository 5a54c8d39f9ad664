use std::sync::atomic::{AtomicBool, Ordering};

use hypervisor::test::{self, Guest, Machine};
use hypervisor::{DomId, Nodes};
use parking_lot::Mutex;
use thiserror::Error;

use super::super::DeviceError;
use super::super::driver::Wake;
use super::*;

const FRONTEND: DomId = DomId(1);
const BACKEND: DomId = DomId(0);

/// A driver whose devices note what the bus does with them.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<&'static str>>,
    /// The store is lost at the next write of what a frontend has to know.
    loses_store: AtomicBool,
}

impl Recorder {
    fn note(&self, call: &'static str) {
        self.calls.lock().push(call);
    }

    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock())
    }
}

impl Driver for Recorder {
    const CLASS: &'static str = "vif";
    type Device = Recorded;

    fn is_ours(&self, _: &dyn Nodes, _: &str) -> Result<bool, StoreError> {
        Ok(true)
    }

    fn probe(self: &Arc<Self>, _: Arc<Node>, _: Wake) -> Recorded {
        Recorded(Arc::clone(self))
    }

    fn check_period(&self) -> Duration {
        Duration::from_secs(1)
    }
}

struct Recorded(Arc<Recorder>);

#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the keys have changed")]
    KeysChanged,
}

impl DeviceError for Failure {
    fn keys_changed() -> Self {
        Failure::KeysChanged
    }

    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Failure::Store(error) => Some(error),
            Failure::KeysChanged => None,
        }
    }

    fn is_domain_gone(&self) -> bool {
        false
    }
}

impl Device for Recorded {
    type Error = Failure;
    type Status = DeviceStatus;
    type Offer = ();

    fn status(&self, bus: &DeviceStatus) -> DeviceStatus {
        bus.clone()
    }

    fn offer(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn write_offer(&self, (): &(), _: &dyn Nodes) -> Result<(), StoreError> {
        Ok(())
    }

    fn revise_offer(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn connect(&mut self, resumed: bool) -> Result<(), Failure> {
        self.0.note(if resumed { "resume" } else { "connect" });
        Ok(())
    }

    fn write_connected(&self, _: &dyn Nodes) -> Result<(), StoreError> {
        if self.0.loses_store.swap(false, Ordering::Relaxed) {
            return Err(StoreError::Lost(std::io::ErrorKind::BrokenPipe.into()));
        }
        self.0.note("write connected");
        Ok(())
    }

    fn follow_keys(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    fn disconnect(&mut self) {
        self.0.note("disconnect");
    }

    fn attach(&mut self) {
        self.0.note("attach");
    }

    fn take_cost(&mut self) -> Duration {
        Duration::ZERO
    }

    fn start(&self) {}

    fn take_failure(&mut self) -> Option<Failure> {
        None
    }

    fn event_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_events(&mut self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    fn check_progress(&mut self, _: Instant) {}
}

/// A device whose frontend has written its keys, at a bus that waits for it.
struct Site {
    _guest: Guest,
    bus: Bus<Recorder>,
    backend: Backend<Recorded>,
}

impl Site {
    /// The backend's state, as the store has it at first, is `own`.
    fn new(own: State) -> Site {
        let machine = Machine::new();
        let guest = machine.guest(FRONTEND, 1).unwrap();
        let device = test::Device {
            class: "vif",
            handle: 0,
            frontend: FRONTEND,
            backend: BACKEND,
            frontend_keys: &[],
            backend_keys: &[("hotplug-status", "connected")],
        };
        machine.attach(&device).unwrap();
        let hypervisor = machine.hypervisor(BACKEND);
        let nodes = hypervisor.store.nodes();
        nodes.put(&format!("{}/state", device.backend_path()), own.number()).unwrap();
        let ready = State::Connected.number();
        nodes.put(&format!("{}/state", device.frontend_path()), ready).unwrap();
        let driver = Arc::new(Recorder::default());
        let bus = Bus { hypervisor, changes: Changes::new().unwrap(), driver };
        let id = DeviceId { class: "vif", domain: FRONTEND, handle: 0 };
        let backend = Backend::probe(&bus, id, device.backend_path()).unwrap();
        Site { _guest: guest, bus, backend }
    }

    fn update(&mut self, now: Instant) -> Vec<&'static str> {
        self.backend.update(now);
        self.bus.driver.calls()
    }

    fn own_state(&self) -> State {
        self.backend.node.states().unwrap().0
    }
}

/// A frame for a guest that has seen `Connected`, and says so to another, finds its queues.
#[test]
fn queues_are_attached_before_the_frontend_sees_that_it_is_connected() {
    let mut site = Site::new(State::InitWait);
    assert_eq!(site.update(Instant::now()), ["connect", "attach", "write connected"]);
    assert_eq!(site.own_state(), State::Connected);
}

/// The bus attaches the queues of all devices that were served before together.
#[test]
fn queues_of_a_device_that_was_served_before_are_left_to_the_bus() {
    let mut site = Site::new(State::Connected);
    assert_eq!(site.update(Instant::now()), ["resume"]);
}

#[test]
fn a_frontend_sees_that_it_is_connected_once_the_store_is_back() {
    let mut site = Site::new(State::InitWait);
    site.bus.driver.loses_store.store(true, Ordering::Relaxed);
    let now = Instant::now();
    assert_eq!(site.update(now), ["connect", "attach"]);
    assert_eq!(site.own_state(), State::InitWait);
    assert_eq!(site.update(now + LONGEST_PAUSE), ["write connected"]);
    assert_eq!(site.own_state(), State::Connected);
    assert_eq!(site.backend.status().reason, None);
}
