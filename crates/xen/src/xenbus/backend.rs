//! The state machine of one device, from the side of its backend.
//!
//! The store is read again whenever anything in it changes. The next action follows from the two
//! states alone, not from earlier ones. So a restarted daemon needs no special rules: if both ends
//! are `Connected` and no ring is mapped, the rings are mapped, even if another daemon wrote the
//! states.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::store::Changes;
use hypervisor::{StoreError, Watch};
use network::control_budget::{ControlBudget, MESSAGE};
use tracing::{info, warn};

use super::bus::{Bus, Change};
use super::{Condition, Device, DeviceError, DeviceId, DeviceStatus, Driver, Node, State};

/// Shortest pause before a frontend that broke the rules may connect again. It doubles each time.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest such pause, and how long a connection must have lasted for the next pause to be the
/// shortest again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Cost of reading the store, which keeps the thread of all devices busy.
const LOOK: Duration = MESSAGE.saturating_mul(5);

/// The backend of one device.
pub struct Backend<D: Device> {
    node: Arc<Node>,
    device: D,
    /// The watches, which end when they are dropped.
    _watches: [Watch; 2],
    connected_since: Option<Instant>,
    /// The next pause.
    pause: Duration,
    /// The earliest time of the next connection.
    not_before: Option<Instant>,
    /// The budget for the work that the frontend causes on the workers.
    budget: ControlBudget,
    /// The time until which changes by the frontend are ignored.
    delayed_until: Option<Instant>,
    status: DeviceStatus,
    /// The store, or another resource, was out of reach at the last update.
    out_of_reach: bool,
    /// The hotplug script had failed at the last update.
    unplugged: bool,
}

impl<D: Device> Backend<D> {
    /// The device whose backend directory is `path`. From now on its changes are noted.
    ///
    /// # Errors
    /// When the store fails, or the directory is not complete.
    pub fn probe<R: Driver<Device = D>>(
        bus: &Bus<R>,
        id: DeviceId,
        path: String,
    ) -> Result<Self, StoreError> {
        let node = Arc::new(Node::new(bus.hypervisor.clone(), id, path)?);
        let watch = |path| bus.changes.watch(node.store(), path, Change::Device(id));
        let watches = [watch(node.backend())?, watch(node.frontend())?];
        let changes: Changes<Change> = bus.changes.clone();
        let wake = Arc::new(move || changes.add(Change::Device(id)));
        info!(port = %id, "found");
        Ok(Backend {
            device: bus.driver.probe(Arc::clone(&node), wake),
            node,
            _watches: watches,
            connected_since: None,
            pause: PAUSE,
            not_before: None,
            budget: ControlBudget::default(),
            delayed_until: None,
            status: DeviceStatus::new(id),
            out_of_reach: false,
            unplugged: false,
        })
    }

    /// The status of the device.
    pub fn status(&self) -> D::Status {
        self.device.status(&self.status)
    }

    /// The time at which [`update`](Self::update) must be called even if nothing changes.
    pub fn deadline(&self) -> Option<Instant> {
        let device = self.device.deadline().filter(|_| self.delayed_until.is_none());
        self.not_before.into_iter().chain(self.delayed_until).chain(device).min()
    }

    /// An event channel that the bus is to wait for.
    pub fn event_source(&self) -> Option<BorrowedFd<'_>> {
        self.device.event_source().filter(|_| self.delayed_until.is_none())
    }

    /// Hands queues that no worker has yet to their workers, and charges for the work.
    pub fn attach(&mut self, now: Instant) {
        self.device.attach();
        self.budget.charge(self.device.take_cost(), now);
    }

    /// Whether its frontend is connected.
    pub fn is_connected(&self) -> bool {
        self.connected_since.is_some()
    }

    /// Whether its frontend is connected, but the store that had its keys was lost.
    pub fn is_stranded(&self) -> bool {
        self.is_connected() && self.node.is_forgotten()
    }

    /// Removes the device's error from the store, after the toolstack has removed the device.
    pub fn remove_errors(&self) {
        self.node.remove_errors();
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Reads the store, and acts on the states.
    pub fn update(&mut self, now: Instant) {
        self.not_before = self.not_before.filter(|until| *until > now);
        if let Some(error) = self.device.take_failure()
            && self.is_connected()
        {
            self.stop(&error, now);
        }
        if self.is_delayed(now) {
            return;
        }
        self.budget.charge(LOOK, now);
        match self.follow_states(now).and_then(|()| self.follow_plugging()) {
            // During the pause, no attempt was made.
            Ok(()) if self.not_before.is_some() => {}
            Ok(()) if std::mem::take(&mut self.out_of_reach) && !self.unplugged => {
                self.status.reason = None;
            }
            Ok(()) => {}
            Err(error) if error.is_transient() => self.await_recovery(&error, now),
            Err(error) => self.stop(&error, now),
        }
        self.handle_events(now);
    }

    /// Whether the frontend has overdrawn its budget. Its changes are followed later, all at once.
    fn is_delayed(&mut self, now: Instant) -> bool {
        let until = self.budget.overdrawn_until(now);
        self.status.control_delayed += u64::from(until.is_some() && self.delayed_until.is_none());
        self.delayed_until = until;
        until.is_some()
    }

    /// Handles events of the device's event source.
    pub fn handle_events(&mut self, now: Instant) {
        if self.is_delayed(now) {
            return;
        }
        if let Err(error) = self.device.handle_events(now) {
            self.stop(&error, now);
        }
    }

    /// Waits for the store, or another resource, that is out of reach. Meanwhile the state is kept,
    /// traffic continues, and the device is looked at again in a while.
    fn await_recovery(&mut self, error: &D::Error, now: Instant) {
        let reason = error.to_string();
        // A store that cannot be reached may come back with nothing in it.
        if !std::mem::replace(&mut self.out_of_reach, true)
            || self.status.reason.as_ref() != Some(&reason)
        {
            match error.store_error() {
                Some(_) => {
                    warn!(port = %self.node.id(), %reason, "cannot read or write the store; traffic continues");
                }
                None => warn!(port = %self.node.id(), %reason, "not connected; retrying"),
            }
            self.status.reason = Some(reason);
        }
        self.not_before = Some(now + LONGEST_PAUSE);
    }

    /// The next action, from the states of both ends.
    fn follow_states(&mut self, now: Instant) -> Result<(), D::Error> {
        let (own, other) = self.node.states()?;
        match (own, other) {
            // The toolstack has removed the backend's directory.
            (State::Unknown, _) => self.disconnect("the backend's directory is gone"),
            (State::Initialising, _) => {
                self.disconnect("the toolstack has reset it");
                self.offer()?;
            }
            (_, other) if is_ready::<D>(other) && self.is_connected() => {
                self.check_keys()?;
                self.announce(own)?;
            }
            (State::InitWait | State::Initialised | State::Connected, other)
                if is_ready::<D>(other) =>
            {
                self.connect(own, now)?
            }
            (_, State::Initialised | State::Connected) => {}
            (_, State::Initialising | State::InitWait) => self.frontend_begins(own)?,
            (_, State::Closing) => {
                if !D::SERVES_CLOSING {
                    self.disconnect("the frontend closes");
                }
                self.node
                    .change_state(own, if own == State::Closed { own } else { State::Closing })?;
            }
            (_, State::Closed | State::Unknown) => {
                self.disconnect("the frontend is closed");
                self.node.change_state(own, State::Closed)?;
            }
        }
        Ok(())
    }

    /// Reports a failed hotplug script as the reason why the device does not connect.
    fn follow_plugging(&mut self) -> Result<(), D::Error> {
        if self.is_connected() {
            return Ok(());
        }
        match self.node.plugging_error()? {
            Some(why) => {
                if !std::mem::replace(&mut self.unplugged, true) {
                    warn!(port = %self.node.id(), reason = %why, "not connected");
                }
                self.status.reason = Some(why);
            }
            None if std::mem::take(&mut self.unplugged) => self.status.reason = None,
            None => {}
        }
        Ok(())
    }

    fn frontend_begins(&mut self, own: State) -> Result<(), StoreError> {
        self.disconnect("the frontend begins anew");
        if own == State::InitWait {
            self.device.revise_offer()
        } else if self.node.is_online()? {
            self.offer()
        } else {
            self.node.change_state(own, State::Closed)
        }
    }

    /// Writes what is offered, and waits for the frontend.
    fn offer(&mut self) -> Result<(), StoreError> {
        let offer = self.device.offer()?;
        self.node.write_state(State::InitWait, |nodes| self.device.write_offer(&offer, nodes))
    }

    /// Checks that a connected frontend has not changed the keys of its connection.
    fn check_keys(&mut self) -> Result<(), D::Error> {
        let same = self.device.follow_keys()?;
        // The frontend may have left that state meanwhile.
        let other = || State::read(self.node.nodes(), self.node.frontend());
        if !same && is_ready::<D>(other()?) {
            return Err(D::Error::keys_changed());
        }
        Ok(())
    }

    /// Connects, once the hotplug script has finished and the pause is over.
    ///
    /// Queues of a new connection are attached before the frontend sees `Connected`: from then on,
    /// a frame that another device sends to it must find them. The queues of a device that was
    /// served before are left to the bus, which attaches those of all such devices together.
    fn connect(&mut self, own: State, now: Instant) -> Result<(), D::Error> {
        if !self.node.is_hotplugged()? || self.not_before.is_some() {
            return Ok(());
        }
        self.unplugged = false;
        self.device.connect(own == State::Connected)?;
        self.connected_since = Some(now);
        self.status.condition = Condition::Connected;
        self.status.connections += 1;
        self.status.reason = None;
        self.node.clear_error();
        if own != State::Connected {
            self.attach(now);
        }
        self.announce(own)
    }

    /// Tells the frontend that it is connected, unless it knows. A store that is lost meanwhile is
    /// written when it is back.
    fn announce(&self, own: State) -> Result<(), D::Error> {
        if matches!(own, State::InitWait | State::Initialised) {
            self.node.write_state(State::Connected, |nodes| self.device.write_connected(nodes))?;
        }
        Ok(())
    }

    /// Releases everything of the frontend.
    fn disconnect(&mut self, reason: &str) {
        if self.connected_since.take().is_none() {
            return;
        }
        self.device.disconnect();
        self.status.condition = Condition::Waiting;
        info!(port = %self.node.id(), reason, "disconnected");
    }

    /// Stops the device. The reason goes to the log, the status and the store.
    fn stop(&mut self, error: &D::Error, now: Instant) {
        // A domain that is destroyed takes its grants along before its directories.
        let frontend = || State::read(self.node.nodes(), self.node.frontend()).ok();
        if error.is_domain_gone() || frontend() == Some(State::Unknown) {
            self.disconnect("the domain is gone");
            return;
        }
        let lasted = self.connected_since.map(|since| now.saturating_duration_since(since));
        if lasted.is_some_and(|lasted| lasted > LONGEST_PAUSE) {
            self.pause = PAUSE;
        }
        self.disconnect("stopped");
        let reason = error.to_string();
        warn!(port = %self.node.id(), %reason, "stopped");
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let node = self.node.error_node();
        let written = self.node.write_state(State::Closing, |nodes| nodes.put(&node, &reason));
        if let Err(error) = written {
            warn!(port = %self.node.id(), reason = %error, "cannot write the reason into the store");
        }
        self.status.condition = Condition::Stopped;
        self.status.violations += 1;
        self.status.reason = Some(reason);
    }
}

/// Whether a frontend in that state has written all its keys.
fn is_ready<D: Device>(other: State) -> bool {
    other == State::Connected || other == D::READY
}

impl<D: Device> Drop for Backend<D> {
    fn drop(&mut self) {
        self.disconnect("no longer served");
    }
}

#[cfg(test)]
mod tests;
