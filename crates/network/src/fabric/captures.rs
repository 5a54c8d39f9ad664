//! Captures of the fabric's ports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use switch::PortId;

use super::{Fabric, State};
use crate::capture::tap::{CaptureClock, Tap, whole_frame};
use crate::capture::{self, Capture, CaptureError, CaptureSpec, TapCounters};
use crate::schedule::{CaptureChange, Request};

/// A capture, as the fabric keeps it.
pub(super) struct Entry {
    /// The ports that are still there.
    ports: Vec<PortId>,
    /// Set when there are none.
    ended: Arc<AtomicBool>,
}

impl Fabric {
    /// Starts a capture. When it returns, all workers capture.
    ///
    /// # Errors
    /// When there are too many captures, or a port does not exist.
    pub fn capture(self: &Arc<Self>, spec: &CaptureSpec) -> Result<Capture, CaptureError> {
        let CaptureSpec { ports, snaplen, filter } = spec;
        let interfaces: Vec<_> = ports.iter().copied().zip(0..).collect();
        let (clock, workers) = (CaptureClock::new(), self.worker_count());
        let end = || {
            let (ring, reader) = capture::ring(workers);
            let counters: Arc<[TapCounters]> =
                ports.iter().map(|_| TapCounters::default()).collect();
            let tap = Tap {
                ports: interfaces.clone(),
                snaplen: *snaplen,
                filter: filter.clone(),
                ring,
                counters: Arc::clone(&counters),
                clock,
                whole: whole_frame(),
            };
            (Box::new(tap), (reader, counters))
        };
        let mut state = self.lock();
        let exists = |port: &PortId| state.ports.contains_key(&port.0);
        if ports.is_empty() || ports.len() > capture::MAX_PORTS || !ports.iter().all(exists) {
            return Err(CaptureError::Ports);
        }
        let free = state.captures.iter().position(Option::is_none);
        let number = free.ok_or(CaptureError::TooMany)?;
        let (taps, ends): (Vec<_>, Vec<_>) = (0..workers).map(|_| end()).unzip();
        let ended = Arc::new(AtomicBool::new(false));
        let entry = Entry { ports: ports.clone(), ended: Arc::clone(&ended) };
        state.captures[number] = Some(entry);
        let mut taps = taps.into_iter();
        self.change_captures(|| CaptureChange::Set(number, taps.next()));
        let (fabric, own) = (Arc::clone(self), Arc::clone(&ended));
        Ok(Capture::new(move || fabric.end_capture(number, &own), ended, ends))
    }

    /// Ends the capture with this number, if it is the one that `ended` belongs to. When it
    /// returns, no worker captures for it.
    fn end_capture(&self, number: usize, ended: &Arc<AtomicBool>) {
        let mut state = self.lock();
        let Some(place) = state.captures.get_mut(number) else { return };
        if place.take_if(|entry| Arc::ptr_eq(&entry.ended, ended)).is_some() {
            self.change_captures(|| CaptureChange::Set(number, None));
        }
    }

    /// A port is gone, and its number may become another's: nothing captures it any more.
    pub(super) fn forget_captured(&self, state: &mut State, port: PortId) {
        let mut captured = false;
        for entry in state.captures.iter_mut().flatten() {
            let before = entry.ports.len();
            entry.ports.retain(|other| *other != port);
            captured |= entry.ports.len() < before;
            if entry.ports.is_empty() {
                entry.ended.store(true, Ordering::Release);
            }
        }
        if captured {
            self.change_captures(|| CaptureChange::Forget(port));
        }
    }

    /// Makes each worker carry out a change, and waits until all have done so. The state stays
    /// locked, so that changes follow one another. Taps that workers no longer need are freed here.
    fn change_captures(&self, mut change: impl FnMut() -> CaptureChange) {
        let (left, leftovers) = mpsc::channel();
        for worker in 0..self.worker_count() {
            self.workers.request(worker, Request::Capture(change(), left.clone()));
        }
        drop(left);
        leftovers.iter().for_each(drop);
    }
}
