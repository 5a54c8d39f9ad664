//! The watches of a store, by path, so that a change looks only at the watches that it concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::tree::{Change, above, below, home, prefix};
use crate::DomId;
use crate::store::OnChange;

/// Most paths that wait for delivery to one watch. Further changes are reported as one change of
/// the watched path.
const PENDING: usize = 64;

/// Most paths that wait for delivery to all watches of an unprivileged domain, likewise.
const PENDING_OF_DOMAIN: usize = 1024;

/// An event to be delivered: the watch's number, and the path.
pub type Event = (u64, String);

/// All watches.
#[derive(Default)]
pub struct Watches {
    last: u64,
    list: BTreeMap<u64, RegisteredWatch>,
    by_path: BTreeMap<String, BTreeSet<u64>>,
    /// How many paths wait for each domain.
    pending: BTreeMap<DomId, usize>,
}

struct RegisteredWatch {
    by: DomId,
    /// Absolute.
    path: String,
    relative: bool,
    on_change: Arc<OnChange>,
    /// Paths of events that were not delivered yet. Each is queued once, however often the path
    /// changes meanwhile.
    pending: BTreeSet<String>,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.by_path.keys()).finish()
    }
}

impl RegisteredWatch {
    /// Relative, if the watch is.
    fn display_path(&self, path: &str) -> String {
        let relative = path.strip_prefix(&prefix(&home(self.by))).filter(|_| self.relative);
        relative.unwrap_or(path).to_owned()
    }
}

impl Watches {
    /// Adds a watch of domain `by`, and returns its number and its first event.
    pub fn add(&mut self, by: DomId, path: String, relative: bool, on_change: OnChange) -> Event {
        self.last += 1;
        let id = self.last;
        self.by_path.entry(path.clone()).or_default().insert(id);
        let on_change = Arc::new(on_change);
        let watch = RegisteredWatch { by, path, relative, on_change, pending: BTreeSet::new() };
        let first = watch.display_path(&watch.path);
        self.list.insert(id, watch);
        (id, first)
    }

    /// Removes a watch. The returned callback must be dropped without the lock, since it may own
    /// another watch.
    pub fn remove(&mut self, id: u64) -> Option<Arc<OnChange>> {
        let watch = self.list.remove(&id)?;
        self.delivered(watch.by, watch.pending.len());
        if let Some(ids) = self.by_path.get_mut(&watch.path) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_path.remove(&watch.path);
            }
        }
        Some(watch.on_change)
    }

    /// Handles a change of a node: calls `send` with the events that are not queued already.
    /// Returns how many watches the change concerns.
    pub fn fire(&mut self, change: &Change, mut send: impl FnMut(Event)) -> u64 {
        let upwards = std::iter::once(change.path.as_str()).chain(above(&change.path));
        let mut ids: Vec<u64> =
            upwards.filter_map(|path| self.by_path.get(path)).flatten().copied().collect();
        let hits = ids.len();
        if change.removed {
            ids.extend(below(&self.by_path, &prefix(&change.path)).flat_map(|(_, ids)| ids));
        }
        for (at, id) in ids.iter().enumerate() {
            let Some(watch) = self.list.get(id).filter(|watch| change.shows_to(watch.by)) else {
                continue;
            };
            // If a directory above was removed, the watched path itself has changed.
            let path = if at < hits { &change.path } else { &watch.path };
            let path = watch.display_path(path);
            self.queue(*id, path).into_iter().for_each(&mut send);
        }
        ids.len() as u64
    }

    /// Fires a special watch, for domains that came or went: calls `send` as [`fire`](Self::fire)
    /// does.
    pub fn fire_special(&mut self, name: &str, send: impl FnMut(Event)) {
        let ids: Vec<u64> = self.by_path.get(name).into_iter().flatten().copied().collect();
        ids.into_iter().filter_map(|id| self.queue(id, name.into())).for_each(send);
    }

    /// Queues an event for `path`, or for the watched path if too many wait. `None`: such an event
    /// waits already.
    fn queue(&mut self, id: u64, path: String) -> Option<Event> {
        let watch = self.list.get_mut(&id)?;
        let of_domain = self.pending.entry(watch.by).or_default();
        let is_full = watch.by != DomId(0) && *of_domain >= PENDING_OF_DOMAIN;
        let path = match watch.pending.len() < PENDING && !is_full {
            true => path,
            false => watch.display_path(&watch.path),
        };
        let is_new = watch.pending.insert(path.clone());
        *of_domain += usize::from(is_new);
        is_new.then_some((id, path))
    }

    /// Takes an event for delivery. A later change is another event. `None`: the watch is gone.
    pub fn take(&mut self, (id, path): &Event) -> Option<Arc<OnChange>> {
        let watch = self.list.get_mut(id)?;
        let (waited, by, on_change) =
            (watch.pending.remove(path), watch.by, watch.on_change.clone());
        self.delivered(by, usize::from(waited));
        Some(on_change)
    }

    fn delivered(&mut self, by: DomId, count: usize) {
        if let Some(pending) = self.pending.get_mut(&by) {
            *pending -= count;
            if *pending == 0 {
                self.pending.remove(&by);
            }
        }
    }
}
