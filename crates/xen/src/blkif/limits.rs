//! The limits of vbds: common ones, and those of single vbds.
//!
//! Each vbd has credit of its own. Limits change while disks are in service, and may be set before
//! a disk is open: the table has the limits of every vbd, open or not, and the lock of the table
//! orders changes and the opening of disks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use storage::Disk;
use storage::limits::DiskRates;

use crate::xenbus::DeviceId;

/// The limits of one vbd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VbdLimits {
    /// The rate limits of the disk.
    pub rates: DiskRates,
    /// The rates were set for this vbd alone.
    pub own: bool,
}

/// A vbd that is served.
#[derive(Debug, Default)]
struct Entry {
    own: Option<DiskRates>,
    disk: Option<Arc<Disk>>,
}

#[derive(Debug, Default)]
struct State {
    all: DiskRates,
    vbds: BTreeMap<DeviceId, Entry>,
}

/// The limits of all vbds that are served.
#[derive(Debug, Default)]
pub struct LimitTable(Mutex<State>);

impl LimitTable {
    /// A table without vbds. New vbds get these limits.
    pub fn new(all: DiskRates) -> LimitTable {
        LimitTable(Mutex::new(State { all, vbds: BTreeMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Adds a vbd.
    pub(super) fn add(&self, id: DeviceId) {
        self.lock().vbds.insert(id, Entry::default());
    }

    /// Removes a vbd, with its own limits.
    pub(super) fn remove(&self, id: DeviceId) {
        self.lock().vbds.remove(&id);
    }

    /// Applies the limits of a vbd to its disk, which is being opened. No worker has a queue of the
    /// disk yet.
    pub(super) fn open(&self, id: DeviceId, disk: &Arc<Disk>) {
        let mut state = self.lock();
        let all = state.all;
        if let Some(entry) = state.vbds.get_mut(&id) {
            disk.set_limits(entry.own.unwrap_or(all));
            entry.disk = Some(Arc::clone(disk));
        }
    }

    /// Notes that the disk of a vbd is closed.
    pub(super) fn close(&self, id: DeviceId) {
        if let Some(entry) = self.lock().vbds.get_mut(&id) {
            entry.disk = None;
        }
    }

    /// Limits every vbd, also those that come later. Limits of single vbds are forgotten.
    pub(super) fn set_all(&self, rates: DiskRates) {
        let mut state = self.lock();
        state.all = rates;
        for entry in state.vbds.values_mut() {
            entry.own = None;
            entry.disk.iter().for_each(|disk| disk.set_limits(rates));
        }
    }

    /// Limits one vbd. False: there is none of this name.
    pub(super) fn set(&self, id: DeviceId, rates: DiskRates) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.vbds.get_mut(&id) else { return false };
        entry.own = Some(rates);
        entry.disk.iter().for_each(|disk| disk.set_limits(rates));
        true
    }

    /// The limits of a vbd; `None`: there is none of this name.
    pub(super) fn get(&self, id: DeviceId) -> Option<VbdLimits> {
        let state = self.lock();
        let own = state.vbds.get(&id)?.own;
        Some(VbdLimits { rates: own.unwrap_or(state.all), own: own.is_some() })
    }
}
