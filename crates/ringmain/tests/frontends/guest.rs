//! A guest with one interface: of the daemon's embedded hypervisor, or of Xen.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::embedded::Version;
use hypervisor::embedded::client::{ConnectError, Connection, GuestRequest, become_guest};
use hypervisor::{Domain, xen::OwnDomain};
use xen::netif::frontend::{
    ControlRing, FrontError, Frontend, FrontendConfig, PageAllocator, Queue,
};
use xen::xenbus::State;

/// How long the backend may take for a change of its state.
const LIMIT: Duration = Duration::from_secs(60);

/// The address of guest number `n`.
pub fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// A frame of `len` bytes from guest to guest, of an experimental protocol.
pub fn frame(to: u8, from: u8, len: usize) -> Vec<u8> {
    let mut frame = [&mac(to)[..], &mac(from), &[0x88, 0xb5]].concat();
    frame.resize(len, 0x5a);
    frame
}

/// A guest, whose interface is connected at first.
pub struct Guest {
    pub domain: Arc<dyn Domain>,
    pub frontend: Frontend,
    pub queue: Option<Queue>,
    pub control: Option<ControlRing>,
    /// Of a guest of the embedded hypervisor.
    _connection: Option<Arc<Connection>>,
}

impl Guest {
    /// Guest number `number` of the daemon that listens at `socket`. A guest of this name that has
    /// just ended may still be there for the daemon.
    pub fn connect(socket: &Path, name: &str, number: u8) -> Guest {
        let request = || GuestRequest {
            pages: Frontend::pages(1),
            version: Version::V1,
            mac: mac(number),
            name: name.into(),
        };
        let start = Instant::now();
        let (guest, connection) = loop {
            match become_guest(socket, request()) {
                Err(ConnectError::Refused(why))
                    if why.ends_with("is there already") && start.elapsed() < LIMIT =>
                {
                    std::thread::sleep(Duration::from_millis(10));
                }
                connected => break connected.unwrap(),
            }
        };
        let mut guest = Guest::new(Arc::new(guest), Some(connection));
        guest.connect_interface().unwrap();
        guest
    }

    /// The guest of Xen that this process runs in, as root. Another process may have left the
    /// interface in any state.
    pub fn of_xen() -> Guest {
        let domain = OwnDomain::open(Frontend::pages(1)).unwrap();
        let mut guest = Guest::new(Arc::new(domain), None);
        match guest.frontend.bus().backend_state().unwrap() {
            State::InitWait => guest.connect_interface().unwrap(),
            _ => guest.connect_again().unwrap(),
        }
        guest
    }

    fn new(domain: Arc<dyn Domain>, connection: Option<Arc<Connection>>) -> Guest {
        let frontend = Frontend::find(Arc::clone(&domain), 0).unwrap();
        let (queue, control) = (None, None);
        Guest { domain, frontend, queue, control, _connection: connection }
    }

    fn wait(&self, accept: impl Fn(State) -> bool) -> Result<(), FrontError> {
        match self.frontend.bus().wait(LIMIT, accept)? {
            true => Ok(()),
            false => Err(FrontError::Backend("does not change its state")),
        }
    }

    fn connect_interface(&mut self) -> Result<(), FrontError> {
        self.wait(|state| state == State::InitWait)?;
        let pages = PageAllocator::new(0, self.domain.pages());
        let (mut queues, control) = self.frontend.connect(&FrontendConfig::default(), pages)?;
        (self.queue, self.control) = (queues.pop(), control);
        self.wait(|state| state == State::Connected)
    }

    /// Waits until the backend has stopped the interface.
    pub fn wait_until_stopped(&self) -> Result<(), FrontError> {
        self.wait(|state| matches!(state, State::Closing | State::Closed))
    }

    /// Closes the interface, and waits until the backend expects another connection.
    pub fn begin(&self) -> Result<(), FrontError> {
        let bus = self.frontend.bus();
        bus.set_state(State::Closing)?;
        self.wait(|state| matches!(state, State::Closing | State::Closed))?;
        bus.set_state(State::Closed)?;
        self.wait(|state| state == State::Closed)?;
        bus.set_state(State::Initialising)?;
        self.wait(|state| state == State::InitWait)
    }

    /// Closes the interface, and connects it with new rings.
    pub fn connect_again(&mut self) -> Result<(), FrontError> {
        self.begin()?;
        (self.queue, self.control) = (None, None);
        self.connect_interface()
    }
}
