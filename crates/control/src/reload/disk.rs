//! The changes of a reload to disks.

use super::{Change, Running};
use crate::config::{Config, DiskSpec, XenDisksSpec};

/// A disk, as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningDisk {
    /// Its description.
    pub spec: DiskSpec,
    /// Whether a front-end can connect, or has connected.
    pub in_service: bool,
    /// Whether the image has become longer than the disk.
    pub has_grown: bool,
}

impl RunningDisk {
    /// The disk with the settings of `wanted` that can change in service.
    fn with_settings(&self, wanted: &DiskSpec) -> DiskSpec {
        DiskSpec { settings: wanted.settings.clone(), ..self.spec.clone() }
    }

    fn change(&self, wanted: &DiskSpec) -> Option<Change> {
        let mut keys = self.spec.changed_keys(wanted);
        if !self.in_service {
            return (self.spec != *wanted).then(|| Change::ReplaceDisk(wanted.clone(), keys));
        }
        keys.extend(self.has_grown.then(|| "size".to_owned()));
        (!keys.is_empty()).then(|| Change::SetDisk(wanted.clone(), keys))
    }
}

impl Running {
    /// The disks that stay although `wanted` does not have them: commands have added them.
    pub fn kept_disks<'a>(&'a self, wanted: &'a Config) -> impl Iterator<Item = &'a DiskSpec> {
        let in_file =
            |name: &String| self.of_file.disks.contains(name) || find(wanted, name).is_some();
        self.disks.iter().map(|disk| &disk.spec).filter(move |spec| !in_file(&spec.name))
    }

    /// The disks in service that `wanted` has with other values of keys that cannot change then,
    /// and the keys.
    pub fn fixed_disks(&self, wanted: &Config) -> Vec<(String, Vec<String>)> {
        let in_service = self.disks.iter().filter(|disk| disk.in_service);
        let fixed = in_service.filter_map(|disk| {
            let wanted = find(wanted, &disk.spec.name)?;
            let keys = disk.with_settings(wanted).changed_keys(wanted);
            (!keys.is_empty()).then(|| (disk.spec.name.clone(), keys))
        });
        fixed.collect()
    }
}

/// The changes from the running disks to those of `wanted`.
pub(super) fn changes(running: &Running, wanted: &Config) -> Vec<Change> {
    let present = |name: &str| running.disks.iter().find(|disk| disk.spec.name == name);
    let changed = wanted.disks.iter().filter_map(|disk| match present(&disk.name) {
        Some(present) => present.change(disk),
        None => Some(Change::AddDisk(disk.clone())),
    });
    let of_file = running.disks.iter().map(|disk| &disk.spec.name);
    let of_file = of_file.filter(|name| running.of_file.disks.contains(*name));
    let gone = of_file.filter(|name| find(wanted, name).is_none());
    let gone = gone.map(|name| Change::RemoveDisk(name.clone()));
    let xen = running.xen_disks.as_ref().zip(wanted.xen_disks.as_ref());
    let xen = xen.and_then(|(present, wanted)| xen_change(present, wanted));
    changed.chain(xen).chain(gone).collect()
}

fn xen_change(present: &XenDisksSpec, wanted: &XenDisksSpec) -> Option<Change> {
    let keys = present.settings.changed_keys(&wanted.settings);
    (!keys.is_empty()).then(|| Change::SetXenDisks(wanted.clone(), keys))
}

/// The name of the disks of Xen guests, if they differ in anything except their settings, which a
/// reload cannot change.
pub fn fixed_xen_disks(present: &Config, wanted: &Config) -> Option<String> {
    let (present, wanted) = (present.xen_disks.as_ref(), wanted.xen_disks.as_ref());
    let set = present.zip(wanted).is_some_and(|(present, wanted)| {
        XenDisksSpec { settings: wanted.settings.clone(), ..present.clone() } == *wanted
    });
    wanted.or(present).filter(|_| !set).map(|xen| xen.name.clone())
}

fn find<'a>(config: &'a Config, name: &str) -> Option<&'a DiskSpec> {
    config.disks.iter().find(|disk| disk.name == name)
}
