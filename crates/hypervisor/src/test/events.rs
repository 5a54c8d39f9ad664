//! Event channels between the domains of a host.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Host, lock};
use crate::DomId;
use crate::events::{Channel, EventError, Events, RemotePort};

/// All ports of all domains.
#[derive(Debug, Default)]
pub struct Wiring {
    ports: Mutex<Ports>,
}

#[derive(Debug, Default)]
struct Ports {
    /// The last number that was given away: ports of all domains are numbered together, so that a mix-up shows.
    last: u32,
    open: HashMap<(DomId, u32), Open>,
}

#[derive(Debug)]
struct Open {
    /// For whom, or with whom.
    with: DomId,
    /// The other end's number, when it is bound.
    bound: Option<u32>,
    signal: Arc<Signal>,
}

impl Ports {
    fn add(&mut self, owner: DomId, open: Open) -> u32 {
        self.last += 1;
        self.open.insert((owner, self.last), open);
        self.last
    }

    /// The other end waits to be bound again.
    fn close(&mut self, owner: DomId, port: u32) {
        let Some(Open { with, bound: Some(other), .. }) = self.open.remove(&(owner, port)) else { return };
        if let Some(other) = self.open.get_mut(&(with, other)) {
            other.bound = None;
        }
    }
}

impl Wiring {
    pub fn open(&self, host: &Arc<Host>, owner: DomId, with: DomId) -> io::Result<Port> {
        let signal = Arc::new(Signal::new()?);
        let number = lock(&self.ports).add(owner, Open { with, bound: None, signal: signal.clone() });
        Ok(Port { host: host.clone(), owner, number, signal })
    }

    fn bind(&self, host: &Arc<Host>, owner: DomId, with: DomId, port: u32) -> Result<Port, EventError> {
        let signal = Arc::new(Signal::new()?);
        let mut ports = lock(&self.ports);
        match ports.open.get(&(with, port)) {
            Some(Open { with, bound: None, .. }) if *with == owner => {}
            _ => return Err(EventError::Refused { domain: with, port: RemotePort(port) }),
        }
        let number = ports.add(owner, Open { with, bound: Some(port), signal: signal.clone() });
        if let Some(other) = ports.open.get_mut(&(with, port)) {
            other.bound = Some(number);
        }
        signal.raise();
        Ok(Port { host: host.clone(), owner, number, signal })
    }

    fn notify(&self, owner: DomId, port: u32) {
        let ports = lock(&self.ports);
        let Some(Open { with, bound: Some(other), .. }) = ports.open.get(&(owner, port)) else { return };
        if let Some(other) = ports.open.get(&(*with, *other)) {
            other.signal.raise();
        }
    }

    /// Closes all ports of a domain.
    pub fn close_all(&self, owner: DomId) {
        let mut ports = lock(&self.ports);
        let own: Vec<u32> = ports.open.keys().filter(|(domain, _)| *domain == owner).map(|(_, port)| *port).collect();
        own.into_iter().for_each(|port| ports.close(owner, port));
    }
}

/// What is signalled to one end.
#[derive(Debug)]
struct Signal {
    waker: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Delivered and not taken: masked.
    masked: bool,
    /// Came while it was masked.
    pending: bool,
}

impl Signal {
    fn new() -> io::Result<Self> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waker, state: Mutex::default() })
    }

    fn raise(&self) {
        let mut state = lock(&self.state);
        if state.masked {
            state.pending = true;
        } else {
            state.masked = true;
            // Nobody else writes it, so there is always room.
            let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
        }
    }

    fn take(&self) -> bool {
        let mut state = lock(&self.state);
        if !state.masked {
            return false;
        }
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        let State { pending, .. } = std::mem::take(&mut *state);
        drop(state);
        if pending {
            self.raise();
        }
        true
    }
}

/// One end of an event channel. It is closed when this is dropped.
#[derive(Debug)]
pub struct Port {
    host: Arc<Host>,
    owner: DomId,
    number: u32,
    signal: Arc<Signal>,
}

impl Port {
    /// What the other end has to bind.
    pub fn number(&self) -> RemotePort {
        RemotePort(self.number)
    }

    /// Waits for a signal and takes it. False when `timeout` has passed without one.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.signal.waker, PollFlags::IN)], Some(&timeout));
        self.take()
    }
}

impl Channel for Port {
    fn notify(&self) {
        self.host.wiring.notify(self.owner, self.number);
    }

    fn waker(&self) -> BorrowedFd<'_> {
        self.signal.waker.as_fd()
    }

    fn take(&self) -> bool {
        self.signal.take()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        lock(&self.host.wiring.ports).close(self.owner, self.number);
    }
}

/// Event channels as `by` can bind them.
#[derive(Debug)]
pub struct Of {
    pub host: Arc<Host>,
    pub by: DomId,
}

impl Events for Of {
    fn bind(&self, domain: DomId, port: RemotePort) -> Result<Box<dyn Channel>, EventError> {
        Ok(Box::new(self.host.wiring.bind(&self.host, self.by, domain, port.0)?))
    }
}
