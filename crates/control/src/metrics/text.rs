//! The text format of Prometheus, version 0.0.4: all samples of a family together, after its help
//! and its type.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::disk_families::{DISK, DISK_QUEUE};
use super::families::{DAEMON, OVERLAY, POLLING, PORT, QUEUE, SPECIAL, WORKER};
use super::family::{Family, Type};
use super::histogram::samples;
use super::labels::labels;
use crate::api::{PortState, Stats};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All states of ports and disks.
const STATES: [PortState; 6] = [
    PortState::Listening,
    PortState::Connecting,
    PortState::Connected,
    PortState::Down,
    PortState::Stalled,
    PortState::Stopped,
];

/// All metrics of a daemon with these counters.
pub fn text(stats: &Stats) -> String {
    let mut page = Page(String::new());
    page.special("ringmain_build_info", [(labels(&[("version", &stats.release)]), 1.0)]);
    page.families(DAEMON, || [(String::new(), stats)]);
    let worker = |index: usize| labels(&[("worker", &index.to_string())]);
    page.families(WORKER, || stats.workers.iter().map(|it| (worker(it.index), it)));
    let polling = || stats.workers.iter().filter_map(|it| Some((it.index, it.polling.as_ref()?)));
    page.families(POLLING, || polling().map(|(index, it)| (worker(index), it)));
    let states = polling().flat_map(|(index, it)| {
        let seconds = move |(state, ns): (&String, &u64)| {
            (labels(&[("worker", &index.to_string()), ("state", state)]), *ns as f64 / 1e9)
        };
        it.state_ns.iter().map(seconds)
    });
    page.special("ringmain_worker_state_seconds_total", states);
    let passes = stats.workers.iter();
    let passes = passes.flat_map(|it| samples(&[("worker", &it.index.to_string())], &it.busy));
    page.special("ringmain_worker_pass_seconds", passes);
    page.ports(stats);
    page.overlays(stats);
    page.disks(stats);
    page.0
}

struct Page(String);

impl Page {
    fn ports(&mut self, stats: &Stats) {
        let ports = || stats.ports.iter();
        let info = ports().map(|it| {
            let kind = it.kind.name();
            (labels(&[("port", &it.name), ("kind", kind), ("endpoint", it.endpoint())]), 1.0)
        });
        self.special("ringmain_port_info", info);
        self.special(
            "ringmain_port_state",
            ports().flat_map(|it| states("port", &it.name, it.state)),
        );
        self.families(PORT, || ports().map(|it| (labels(&[("port", &it.name)]), it)));
        self.families(QUEUE, || {
            ports().flat_map(|port| {
                let queues = port.queues.iter();
                queues.map(|it| (queue("port", &port.name, it.index.into()), &it.counts))
            })
        });
        let drops = ports().flat_map(|it| reasons("port", &it.name, &it.total.drops));
        self.special("ringmain_port_dropped_frames_total", drops);
        let waits = ports().flat_map(|it| samples(&[("port", &it.name)], &it.waits));
        self.special("ringmain_port_room_wait_seconds", waits);
        let removed = stats.removed.drops.iter();
        let removed = removed.map(|(reason, it)| (labels(&[("reason", reason)]), *it as f64));
        self.special("ringmain_removed_ports_dropped_frames_total", removed);
    }

    fn overlays(&mut self, stats: &Stats) {
        let overlays = || stats.overlays.iter();
        self.special(
            "ringmain_overlay_state",
            overlays().flat_map(|it| states("overlay", &it.name, it.state)),
        );
        self.families(OVERLAY, || overlays().map(|it| (labels(&[("overlay", &it.name)]), it)));
        let drops = overlays().flat_map(|it| reasons("overlay", &it.name, &it.drops));
        self.special("ringmain_overlay_dropped_datagrams_total", drops);
    }

    fn disks(&mut self, stats: &Stats) {
        let disks = || stats.disks.iter();
        let info = disks().map(|it| {
            let kind = it.kind.replace('_', "-");
            (labels(&[("disk", &it.name), ("kind", &kind), ("image", &it.image)]), 1.0)
        });
        self.special("ringmain_disk_info", info);
        self.special(
            "ringmain_disk_state",
            disks().flat_map(|it| states("disk", &it.name, it.state)),
        );
        self.families(DISK, || disks().map(|it| (labels(&[("disk", &it.name)]), it)));
        self.families(DISK_QUEUE, || {
            disks().flat_map(|disk| {
                let queues = disk.queues.iter();
                queues.map(|it| (queue("disk", &disk.name, it.index), &it.counts))
            })
        });
        let errors = disks().flat_map(|it| reasons("disk", &it.name, &it.total.errors));
        self.special("ringmain_disk_failed_requests_total", errors);
        let latencies = disks().flat_map(|disk| {
            disk.latency.iter().flat_map(|(operation, it)| {
                samples(&[("disk", &disk.name), ("operation", operation)], it)
            })
        });
        self.special("ringmain_disk_request_seconds", latencies);
    }

    /// Families of a table, each with the samples of all `items`.
    fn families<'a, T: 'a, I>(&mut self, families: &[Family<T>], items: impl Fn() -> I)
    where
        I: IntoIterator<Item = (String, &'a T)>,
    {
        for family in families {
            let samples = items().into_iter();
            let samples = samples.filter_map(|(labels, it)| Some((labels, (family.value)(it)?)));
            self.family((family.name, family.kind, family.help), samples);
        }
    }

    /// A family of the table of special ones.
    fn special(&mut self, name: &str, samples: impl IntoIterator<Item = (String, f64)>) {
        if let Some((name, kind, _, help)) = SPECIAL.iter().find(|family| family.0 == name) {
            self.family((name, *kind, help), samples);
        }
    }

    /// Writes a family, unless it has no samples. Each sample begins with the text that follows the
    /// family's name: the suffix of a histogram's sample, if any, and the labels.
    fn family(
        &mut self,
        (name, kind, help): (&str, Type, &str),
        samples: impl IntoIterator<Item = (String, f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let page = &mut self.0;
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {}", kind.word());
        for (rest, value) in samples {
            let _ = writeln!(page, "{name}{rest} {value}");
        }
    }
}

/// A sample for each state of a port or disk.
fn states<'a>(
    what: &'static str,
    name: &'a str,
    present: PortState,
) -> impl Iterator<Item = (String, f64)> + use<'a> {
    STATES.into_iter().map(move |state| {
        (labels(&[(what, name), ("state", state.name())]), f64::from(u8::from(state == present)))
    })
}

/// A sample for each reason for which frames of a port, or requests of a disk, were lost.
fn reasons<'a>(
    what: &'static str,
    name: &'a str,
    counts: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = (String, f64)> + use<'a> {
    let sample = move |(reason, count): (&'a String, &'a u64)| {
        (labels(&[(what, name), ("reason", reason)]), *count as f64)
    };
    counts.iter().map(sample)
}

/// The labels of a queue of a port or disk.
fn queue(what: &str, name: &str, index: usize) -> String {
    labels(&[(what, name), ("queue", &index.to_string())])
}

#[cfg(test)]
mod tests;
