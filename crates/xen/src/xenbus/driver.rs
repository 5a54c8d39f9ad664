//! The traits that a class of devices implements, so that the bus can serve it (Linux: `struct
//! xenbus_driver`).

use std::error::Error;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{Nodes, StoreError};

use super::{DeviceStatus, Node, State};

/// A class of devices.
pub trait Driver: Send + Sync + 'static {
    /// The name of its directory below `backend`.
    const CLASS: &'static str;
    /// One device of it.
    type Device: Device;

    /// Whether the device whose backend directory is `backend` is for this driver.
    ///
    /// # Errors
    /// When the store fails.
    fn is_ours(&self, nodes: &dyn Nodes, backend: &str) -> Result<bool, StoreError>;

    /// The device at `node`, not connected. `wake` makes the bus look at it again soon.
    fn probe(self: &Arc<Self>, node: Arc<Node>, wake: Wake) -> Self::Device;

    /// How often [`Device::check_progress`] is to be called.
    fn check_period(&self) -> Duration;
}

/// Makes the bus look at one device again soon. Can be called from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// One device. The bus calls it from one thread, and decides when to connect and disconnect;
/// between the two, the device owns its rings.
///
/// Mappings and event channels of the frontend, which a connected device holds, are released by
/// [`disconnect`](Self::disconnect); all else when the device is dropped.
pub trait Device: Send {
    /// Why the device does not connect, or must stop.
    type Error: DeviceError;
    /// The status for observers.
    type Status: Clone + Send;
    /// The offer to a frontend.
    type Offer;

    /// The frontend's first state in which all its keys are there: `Initialised`, or, for devices
    /// whose frontends do without it, `Connected`.
    const READY: State = State::Connected;
    /// Whether a frontend that is closing is served until it is closed: it may still have to send
    /// data of its users.
    const SERVES_CLOSING: bool = false;

    /// The status of the device; `bus` is the bus's part.
    fn status(&self, bus: &DeviceStatus) -> Self::Status;

    /// The offer to the frontend, from the operator's settings.
    ///
    /// # Errors
    /// When a setting is not valid, or the store fails.
    fn offer(&self) -> Result<Self::Offer, StoreError>;

    /// Writes an offer. It is seen together with the state `InitWait`.
    ///
    /// # Errors
    /// When the store fails.
    fn write_offer(&self, offer: &Self::Offer, nodes: &dyn Nodes) -> Result<(), StoreError>;

    /// Brings the offer up to date after a change while the frontend may be reading it, as far as
    /// no earlier offer is withdrawn.
    ///
    /// # Errors
    /// When the store fails.
    fn revise_offer(&self) -> Result<(), StoreError>;

    /// Reads the frontend's keys, and maps its rings. `resumed`: the store says that the device
    /// was connected before this daemon found it, so the rings are in use already.
    ///
    /// # Errors
    /// Why the device does not connect. Nothing stays mapped then.
    fn connect(&mut self, resumed: bool) -> Result<(), Self::Error>;

    /// Writes what the frontend of a new connection has to know. It is seen together with the state
    /// `Connected`.
    ///
    /// # Errors
    /// When the store fails.
    fn write_connected(&self, nodes: &dyn Nodes) -> Result<(), StoreError> {
        let _ = nodes;
        Ok(())
    }

    /// Whether the keys of the connected frontend are those that it connected with. Keys that a
    /// frontend may change at any time are followed here.
    ///
    /// # Errors
    /// When the store fails.
    fn follow_keys(&mut self) -> Result<bool, Self::Error>;

    /// Releases everything of the frontend.
    fn disconnect(&mut self);

    /// Hands the queues of a new connection to their workers, if none has them yet. They only
    /// receive until [`start`](Self::start).
    fn attach(&mut self);

    /// Cost of connecting, disconnecting and events to the workers since the last call, in time of
    /// a worker.
    fn take_cost(&mut self) -> Duration;

    /// Lets the queues send. Called when all devices that were found together are attached: a
    /// device that was served before may have frames in its rings for another.
    fn start(&self);

    /// The error that a worker found in a queue; each is returned once.
    fn take_failure(&mut self) -> Option<Self::Error>;

    /// An event channel that this thread, not a worker, is to wait for.
    fn event_source(&self) -> Option<BorrowedFd<'_>>;

    /// When [`handle_events`](Self::handle_events) is to be called even without an event.
    fn deadline(&self) -> Option<Instant>;

    /// Handles events of the [event source](Self::event_source).
    ///
    /// # Errors
    /// When the frontend breaks the rules.
    fn handle_events(&mut self, now: Instant) -> Result<(), Self::Error>;

    /// Called every [`Driver::check_period`] while the device is connected: checks whether the
    /// frontend still takes frames or answers.
    fn check_progress(&mut self, now: Instant);
}

/// The reason why a device does not connect, or must stop.
pub trait DeviceError: Error + From<StoreError> {
    /// The frontend has changed the keys of its connection.
    fn keys_changed() -> Self;

    /// The store's error, if it is one.
    fn store_error(&self) -> Option<&StoreError>;

    /// Whether the cause is the end of the frontend's domain, and no fault of the frontend.
    fn is_domain_gone(&self) -> bool;

    /// Whether something else that the device needs on this host is not available.
    fn is_unavailable(&self) -> bool {
        false
    }

    /// Whether the frontend is not at fault, and trying again may help: the store, or something
    /// else, is out of reach.
    fn is_transient(&self) -> bool {
        use StoreError::{Again, Emptied, Lost, Protocol, Quota};
        self.is_unavailable()
            || matches!(
                self.store_error(),
                Some(Lost(_) | Protocol(_) | Again | Emptied | Quota { .. })
            )
    }
}
