//! The generator's loop, and the phases of a run.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ring::driver::DriverRing;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Error;
use super::device::Device;
use super::endpoint::{Doorbells, Endpoint, Role, Sender};
use super::receive::Counts;
use super::time::Clock;

/// Time for which receivers wait for another frame after the end, if frames may be lost for want of
/// buffers.
const QUIET_NS: u64 = 300_000_000;

/// The same time if no frame should be lost. It is longer, since a back-end on a busy machine may
/// not get the CPU for a while.
const PATIENT_NS: u64 = 5_000_000_000;

/// Longest sleep, so that no sleep lasts beyond the end of a phase.
const NAP_NS: u64 = 10_000_000;

/// Lengths of phases in ns. Each thread counts from its own start, and makes at least one round in
/// each phase.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    /// Before measuring.
    pub warm: u64,
    /// While measuring.
    pub measured: u64,
    /// Whether no frame should be lost, so that the end waits for late frames.
    pub patient: bool,
}

/// The counts of one direction's receiver at some time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    /// The time, in ns.
    pub time: u64,
    /// Counts.
    pub counts: Counts,
}

/// One guest after the run.
pub struct Outcome {
    /// The role of the endpoint, with its sender and receiver.
    pub role: Role,
    /// Kicks and interrupts.
    pub doorbells: Doorbells,
    /// When measuring began, and ended.
    pub marks: [Mark; 2],
}

/// The guests of one thread.
pub struct Engine<R> {
    endpoints: Vec<Endpoint<R>>,
    /// Devices that send to guests.
    devices: Vec<Device>,
    clock: Clock,
    /// The descriptors to wait for when there is nothing to do; `None`: guests poll.
    epoll: Option<Epoll>,
}

impl<R: DriverRing> Engine<R> {
    /// Runs `endpoints` and `devices`; with `sleeps` by interrupts, otherwise by polling.
    ///
    /// # Errors
    /// When the system has no means to wait.
    pub fn new(
        endpoints: Vec<Endpoint<R>>,
        devices: Vec<Device>,
        clock: Clock,
        sleeps: bool,
    ) -> Result<Self, Error> {
        let epoll = if sleeps { Some(epoll(&endpoints).map_err(Error::Wait)?) } else { None };
        Ok(Self { endpoints, devices, clock, epoll })
    }

    /// All that send.
    fn senders(&self) -> impl Iterator<Item = &Sender> {
        let guests = self.endpoints.iter().filter_map(Endpoint::sender);
        guests.chain(self.devices.iter().map(Device::sender))
    }

    /// Sends until the end, and receives until all frames have arrived or no more come. `stop` ends
    /// the run early.
    ///
    /// # Errors
    /// When a back-end broke the protocol.
    pub fn run(mut self, phases: Phases, stop: &AtomicBool) -> Result<Vec<Outcome>, Error> {
        let warm = self.run_phase(phases.warm, stop)?;
        for endpoint in &mut self.endpoints {
            if let Some(receiver) = endpoint.receiver() {
                receiver.reset_latency();
            }
        }
        let end = self.run_phase(phases.measured, stop)?;
        self.drain(phases.patient, stop)?;
        let marks = warm.into_iter().zip(end);
        let outcome = |(endpoint, (warm, end)): (Endpoint<R>, _)| {
            let (role, doorbells) = endpoint.into_parts();
            Outcome { role, doorbells, marks: [warm, end] }
        };
        Ok(self.endpoints.into_iter().zip(marks).map(outcome).collect())
    }

    /// Sends and receives for `duration` ns; returns the receivers' counts at the end.
    fn run_phase(&mut self, duration: u64, stop: &AtomicBool) -> Result<Vec<Mark>, Error> {
        let end = self.clock.now() + duration;
        loop {
            let mut work = 0;
            for endpoint in &mut self.endpoints {
                work += endpoint.receive(self.clock)?;
                work += endpoint.transmit(self.clock)?;
            }
            for device in &mut self.devices {
                work += device.transmit(self.clock)?;
            }
            if work == 0 && self.epoll.is_some() {
                self.sleep()?;
            }
            if self.clock.now() >= end || stop.load(Relaxed) {
                break;
            }
        }
        let time = self.clock.now();
        let mark = |endpoint: &mut Endpoint<R>| {
            let counts = endpoint.receiver().map(|r| r.counts()).unwrap_or_default();
            Mark { time, counts }
        };
        Ok(self.endpoints.iter_mut().map(mark).collect())
    }

    /// Receives the frames still under way, unless told to stop at once.
    ///
    /// The wait includes frames that these guests sent to guests of other threads: a guest that
    /// ends closes its connection, and the back-end then drops frames that it has not fetched.
    fn drain(&mut self, patient: bool, stop: &AtomicBool) -> Result<(), Error> {
        self.senders().for_each(|sender| sender.counters.close());
        let mut last = self.clock.now();
        let mut arrived = 0;
        loop {
            let mut work = 0;
            for endpoint in &mut self.endpoints {
                work += endpoint.receive(self.clock)?;
            }
            let roles = || self.endpoints.iter().map(Endpoint::role);
            let now = self.clock.now();
            let quiet = if patient && !stop.load(Relaxed) { PATIENT_NS } else { QUIET_NS };
            let before = std::mem::replace(&mut arrived, roles().map(Role::arrived).sum::<u64>());
            if work > 0 || arrived > before {
                last = now;
            } else if roles().all(Role::is_complete) || now > last + quiet {
                return Ok(());
            }
        }
    }

    /// Sleeps until a back-end interrupts, or an event is due.
    fn sleep(&mut self) -> Result<(), Error> {
        let ready = self.endpoints.iter_mut().fold(false, |ready, endpoint| endpoint.arm() | ready);
        if !ready {
            self.nap().map_err(Error::Wait)?;
        }
        self.endpoints.iter_mut().for_each(Endpoint::disarm);
        Ok(())
    }

    /// Waits for an interrupt, with a limit in whole milliseconds. An event that is due sooner
    /// counts as due now.
    fn nap(&self) -> io::Result<()> {
        let Some(epoll) = &self.epoll else { return Ok(()) };
        let now = self.clock.now();
        let due = self.senders().filter_map(|sender| sender.pace.due_in(now)).min();
        let nap = (due.unwrap_or(NAP_NS).min(NAP_NS) / 1_000_000) as i32;
        let mut events = [EpollEvent::default(); 16];
        match epoll.wait(nap, &mut events) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }
}

/// Becomes ready when any of the guests is interrupted.
fn epoll<R: DriverRing>(endpoints: &[Endpoint<R>]) -> io::Result<Epoll> {
    let epoll = Epoll::new()?;
    for call in endpoints.iter().flat_map(Endpoint::interrupts) {
        let event = EpollEvent::new(EventSet::IN, 0);
        epoll.ctl(ControlOperation::Add, call.as_raw_fd(), event)?;
    }
    Ok(epoll)
}
