//! Copies that failed, and the end that made each of them fail.

use crate::copies::{Copies, Engine, Place, Status, run};
use crate::grant::{Granted, PAGE};

/// The end that made a copy fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultyEnd {
    /// The end whose bytes were to be copied.
    Sender,
    /// The end into whose buffers they were to be copied.
    Receiver,
}

/// A frame that could not be copied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The sender, as set by [`GrantCopyBatch::set_ends`].
    pub sender: u32,
    /// The receiver, likewise.
    pub receiver: u32,
    /// Its token and its length; `None` when its receiver has refused it already.
    pub frame: Option<(u32, u32)>,
    /// The end that made it fail.
    pub faulty: FaultyEnd,
    /// The hypervisor's status.
    pub status: Status,
}

/// A failed copy: its frame's entry, its status, and which ends are granted.
pub(super) struct Failed {
    pub(super) entry: u32,
    pub(super) status: Status,
    pub(super) source: Option<Granted>,
    pub(super) target: Option<Granted>,
    pub(super) len: u16,
}

/// The pieces that could not be copied, the first of each frame only.
pub(super) fn failures_of(copies: &Copies) -> Vec<Failed> {
    let mut all: Vec<Failed> = Vec::new();
    for (entry, status, segment) in copies.failed() {
        if all.last().is_none_or(|last| last.entry != entry) {
            let (source, target, len) = (segment.source(), segment.target(), segment.len());
            all.push(Failed { entry, status, source, target, len });
        }
    }
    all
}

/// Finds the end that made each copy fail. If both ends are granted, the hypervisor does not report
/// which one failed. So the source is copied once more, to private memory. All of it is copied,
/// since only some of its bytes may be granted.
pub(super) fn attribute(
    copies: &mut Copies,
    engine: &dyn Engine,
    failed: Vec<Failed>,
) -> Vec<(Failed, FaultyEnd)> {
    let mut probes = Vec::new();
    // The copied bytes are not read.
    let scratch = copies.reserve(PAGE).map(|(_, place)| place);
    for failed in &failed {
        let probe = failed.source.filter(|_| failed.target.is_some()).zip(scratch);
        let push = |(source, to)| {
            copies.push(Place::Granted(source), to, failed.len.into(), probes.len() as u32)
        };
        probes.push(probe.map(push).is_some_and(|pushed| pushed.is_ok()));
    }
    if copies.is_waiting() {
        run(engine, copies);
    }
    let failed_probes: Vec<u32> = copies.failed().map(|(probe, _, _)| probe).collect();
    copies.clear();
    let decide = |(i, failed): (usize, Failed)| {
        let granted = if probes.get(i) == Some(&true) {
            if failed_probes.contains(&(i as u32)) {
                FaultyEnd::Sender
            } else {
                FaultyEnd::Receiver
            }
        } else if failed.source.is_some() {
            FaultyEnd::Sender
        } else {
            FaultyEnd::Receiver
        };
        let faulty = match (failed.status, granted) {
            // The local end failed, and not the granted one.
            (Status::LOCAL_FAULT, FaultyEnd::Sender) => FaultyEnd::Receiver,
            (Status::LOCAL_FAULT, FaultyEnd::Receiver) => FaultyEnd::Sender,
            (_, granted) => granted,
        };
        (failed, faulty)
    };
    failed.into_iter().enumerate().map(decide).collect()
}
