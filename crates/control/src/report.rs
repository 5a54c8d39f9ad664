//! Turns the counters of the fabric into the reports of the control socket.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use hypervisor::embedded::{CopyUsage, StoreUsage};
use network::fabric::Fabric;
use network::poll::show::PollCounters;
use network::poll::{Decision, PollingPolicy, State};
use rustix::time::{ClockId, clock_gettime};
use sandbox::LayerReport;
use serde_json::Value as Json;
use switch::{PortId, Row, Vlan};
use xen::netif::device_queue::DeviceQueueStatus;
use xen::netif::settings::SCRIPT;
use xen::netif::status::{Condition, MappedPagesStatus};

use crate::api::{
    CacheReport, Counts, Durations, GuestCopies, MacRow, MemoryReport, PollingReport, PortReport,
    PortState, QueueReport, SandboxLayer, Stats, StoreReport, WorkerReport,
};
use crate::api::{DiskReport, OverlayReport};
use crate::backend::{Backend, BackendError, Condition as BackendCondition};
use crate::config::{PortKind, PortSpec, port_options};
use crate::copy_methods;
use crate::vif::Vif;

mod counters;
mod disk;
mod limits;

pub use counters::{add_removed, continue_counts, counts, no_counts};
pub use disk::describe_disk;
pub use limits::{disk_limits, limits};
use limits::{texts, vif_limits};

/// The gap, in nanoseconds, from which longer ones are not distinguished.
const LONGEST_GAP_NS: u64 = 1 << 31;
/// The time after which a worker without a change of state no longer counts as short of CPU time. A
/// sleeping worker does not notice that the shortage is over.
const SHORTAGE: Duration = Duration::from_secs(1);

/// State that all ports have in common.
pub struct Context<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// How many workers it has.
    pub workers: usize,
    /// The polling policy of ports without one of their own.
    pub policy: PollingPolicy,
}

/// Everything about a port of the configuration, and its backend or why there is none.
pub fn port(
    context: &Context<'_>,
    spec: &PortSpec,
    backend: Result<&dyn Backend, &BackendError>,
) -> PortReport {
    let id = backend.ok().and_then(|backend| backend.id());
    let queues = id.map(|id| queues(context.fabric, id)).unwrap_or_default();
    let condition = match backend {
        Ok(backend) => backend.condition(),
        Err(error) => BackendCondition::new(PortState::Stopped, Some(error.to_string())),
    };
    let (vlan, trunk) = vlans(&spec.vlan);
    let device = match &spec.kind {
        PortKind::Xen => Some(SCRIPT),
        kind => kind.device(),
    };
    PortReport {
        name: spec.name.clone(),
        kind: spec.kind.kind(),
        socket: spec.kind.socket().map(|socket| socket.display().to_string()),
        mode: spec.kind.mode().map(|mode| mode.name().to_owned()),
        device: device.map(str::to_owned),
        state: condition.state,
        reason: condition.reason,
        peer: condition.peer,
        connections: condition.connections,
        violations: condition.violations,
        control_delayed: condition.control_delayed,
        recovered_rings: condition.recovered_rings,
        unclear_rings: condition.unclear_rings,
        memory: condition.memory.map(memory),
        vlan,
        trunk,
        mac: spec.mac.map(|mac| mac.to_string()),
        mtu: spec.mtu,
        options: options(spec, context.policy),
        limits: limits(&spec.settings.limits),
        budget: spec.settings.budget.clone(),
        addresses: texts(&spec.settings.addresses),
        security_groups: spec.settings.security_groups.clone(),
        tracked_connections: id.and_then(|id| tracked_connections(context.fabric, id)),
        mirror: spec.settings.mirror.clone(),
        cache: None,
        device_queue: spec.kind.device_queue().map(str::to_owned),
        features: condition.features.into_iter().map(str::to_owned).collect(),
        guest_copies: None,
        store: None,
        queue_pairs: spec.queue_pairs(context.workers),
        total: total(&queues),
        waits: id.map(|id| waits(context.fabric, id)).unwrap_or_default(),
        queues,
    }
}

fn tracked_connections(fabric: &Fabric, id: PortId) -> Option<u64> {
    fabric.filter(id).map(|filter| filter.connections() as u64)
}

/// The counters of a port of an overlay, by queue, and their sum.
pub fn of_overlay(fabric: &Fabric, id: PortId) -> (Vec<QueueReport>, Counts, Durations) {
    let queues = queues(fabric, id);
    let total = total(&queues);
    (queues, total, waits(fabric, id))
}

fn total(queues: &[QueueReport]) -> Counts {
    let mut total = no_counts();
    queues.iter().for_each(|queue| total.add(&queue.counts));
    total
}

fn memory((allocated_bytes, limit_bytes): (u64, u64)) -> MemoryReport {
    MemoryReport { allocated_bytes, limit_bytes }
}

fn cache(MappedPagesStatus { pages, most, hits, misses }: MappedPagesStatus) -> CacheReport {
    CacheReport { pages: pages as u64, limit: most as u64, hits, misses }
}

/// How the port is served where there is a choice. Its polling policy is the one in force.
fn options(spec: &PortSpec, policy: PollingPolicy) -> BTreeMap<String, Json> {
    let in_force = |key: &str, value: Json| match key {
        "polling" if value.is_null() => Json::from(policy.to_string()),
        _ => value,
    };
    let options = port_options(&spec.kind, &spec.options).into_iter();
    options.map(|(key, value)| (key.replace('-', "_"), in_force(key, value))).collect()
}

/// VLAN of an untagged port, VLANs of a tagged one.
fn vlans(vlan: &Vlan) -> (Option<u16>, Vec<u16>) {
    match vlan {
        Vlan::None => (None, Vec::new()),
        Vlan::Access(vlan) => (Some(*vlan), Vec::new()),
        Vlan::Trunk(list) => (None, list.clone()),
    }
}

/// Everything about a vif, which is a port by itself, with the options of the port `host`. The vif
/// has at most the queue pairs of that port.
pub fn vif(
    fabric: &Fabric,
    Vif { name, kind, peer, copy_usage, store_usage, status: vif }: &Vif,
    host: &PortReport,
) -> PortReport {
    let mut queues = vif.port.map(|id| queues(fabric, id)).unwrap_or_default();
    if let Some(DeviceQueueStatus::Active { .. }) = vif.device_queue {
        // The device queue comes after all others.
        queues.iter_mut().skip(vif.queues).for_each(|queue| queue.device = true);
    }
    let state = match vif.condition {
        Condition::Waiting => PortState::Listening,
        Condition::Connected => PortState::Connected,
        Condition::Stalled => PortState::Stalled,
        Condition::Stopped => PortState::Stopped,
    };
    let settings = vif.settings.as_ref();
    let (vlan, trunk) = settings.map(|settings| vlans(&settings.rule.vlan)).unwrap_or_default();
    let queue_pairs = settings
        .and_then(|settings| settings.queues)
        .map_or(host.queue_pairs, |own| own.min(host.queue_pairs));
    PortReport {
        name: name.clone(),
        kind: *kind,
        socket: None,
        mode: None,
        device: Some(format!("domain {}", vif.id.domain)),
        state,
        reason: vif.reason.clone(),
        peer: *peer,
        connections: vif.connections,
        violations: vif.violations,
        control_delayed: vif.control_delayed,
        recovered_rings: 0,
        unclear_rings: 0,
        memory: None,
        vlan,
        trunk,
        mac: settings.and_then(|settings| settings.rule.mac).map(|mac| mac.to_string()),
        mtu: settings.and_then(|settings| settings.mtu),
        options: host.options.clone(),
        limits: settings.map_or(host.limits, |settings| vif_limits(host.limits, settings.rate())),
        budget: settings
            .and_then(|settings| settings.budget.clone())
            .or_else(|| host.budget.clone()),
        addresses: match settings.map(|settings| texts(&settings.addresses)) {
            Some(own) if !own.is_empty() => own,
            _ => host.addresses.clone(),
        },
        security_groups: host.security_groups.clone(),
        tracked_connections: vif.port.and_then(|id| tracked_connections(fabric, id)),
        mirror: host.mirror.clone(),
        cache: vif.cache.map(cache),
        device_queue: vif.device_queue.as_ref().map(device_queue),
        features: vif.features.names().into_iter().map(str::to_owned).collect(),
        guest_copies: copy_usage.filter(|usage| usage.calls > 0).map(guest_copies),
        store: store_usage.map(store),
        queue_pairs,
        total: total(&queues),
        waits: vif.port.map(|id| waits(fabric, id)).unwrap_or_default(),
        queues,
    }
}

fn guest_copies(usage: CopyUsage) -> GuestCopies {
    GuestCopies {
        calls: usage.calls,
        bytes: usage.bytes,
        cpu_us: usage.time.as_micros() as u64,
        throttled_us: usage.throttled.as_micros() as u64,
    }
}

fn store(StoreUsage { requests, refused, throttled }: StoreUsage) -> StoreReport {
    StoreReport { requests, refused, throttled_us: throttled.as_micros() as u64 }
}

/// The state of a device queue, in words.
fn device_queue(status: &DeviceQueueStatus) -> String {
    match status {
        DeviceQueueStatus::Refused(why) => format!("none: {why}"),
        DeviceQueueStatus::Active { queue, .. } => {
            let lost = status.losses();
            format!(
                "{queue}; {} frames lost for want of buffers, {} for other reasons",
                lost.no_page, lost.other
            )
        }
    }
}

fn queues(fabric: &Fabric, id: PortId) -> Vec<QueueReport> {
    let placement: HashMap<u16, usize> = fabric.placement(id).into_iter().collect();
    let queues = (0..).zip(fabric.counters(id));
    let queues = queues.map(|(index, queue)| QueueReport {
        index,
        worker: placement.get(&index).copied(),
        device: false,
        counts: counts(&queue),
    });
    queues.collect()
}

/// The times that senders waited for room in any queue of a port.
fn waits(fabric: &Fabric, id: PortId) -> Durations {
    let mut waits = Durations::default();
    fabric.counters(id).iter().for_each(|queue| waits.add(&queue.waits));
    waits
}

/// State that the fabric does not know itself.
pub struct Basics<'a> {
    /// The CPU of each worker, where they are pinned.
    pub cpus: &'a [u16],
    /// The load of each worker, 0 to 1, where they are balanced.
    pub loads: &'a [f64],
    /// When the daemon started.
    pub started: Instant,
    /// The layers of its sandbox.
    pub layers: &'a [LayerReport],
    /// Its overlays.
    pub overlays: Vec<OverlayReport>,
    /// Its disks.
    pub disks: Vec<DiskReport>,
}

/// Everything about the daemon.
pub fn stats(
    fabric: &Fabric,
    Basics { cpus, loads, started, layers, overlays, disks }: Basics<'_>,
    ports: Vec<PortReport>,
    removed: Counts,
) -> Stats {
    let workers = fabric.worker_counters().iter().enumerate().map(|(index, worker)| WorkerReport {
        index,
        cpu: cpus.get(index).copied(),
        busy_passes: worker.run.busy_passes.get(),
        idle_passes: worker.run.idle_passes.get(),
        sleeps: worker.run.sleeps.get(),
        cache_hits: worker.cache_hits.get(),
        cache_misses: worker.cache_misses.get(),
        handoff_batches: worker.handoff_batches.get(),
        handed_off: worker.handed_off.get(),
        polling: polling(&worker.run.polling, started.elapsed()),
        busy_us: worker.run.busy.sum() / 1000,
        busy: Durations::from(&worker.run.busy),
        load: loads.get(index).map(|load| (load * 100.0).round() as u8),
        rebalanced: worker.rebalanced.get(),
    });
    let sandbox = layers.iter().map(|report| SandboxLayer {
        layer: report.layer.name().to_owned(),
        state: report.state.name().to_owned(),
        detail: report.state.detail().to_owned(),
    });
    Stats {
        pid: std::process::id(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: cpu_time().as_secs_f64(),
        sandbox: sandbox.collect(),
        copies: copy_methods::report(),
        workers: workers.collect(),
        queue_migrations: fabric.moves(),
        interrupt_thread_interrupts: fabric.interrupts_sent(),
        ports,
        overlays,
        disks,
        removed,
    }
}

/// How a worker has waited since `uptime` ago. A worker counts its sleep when it wakes, so time
/// that is not counted yet is sleep.
fn polling(counters: &PollCounters, uptime: Duration) -> Option<PollingReport> {
    let Decision { policy, nap, window, cost, gaps, short, suspensions } = counters.decision()?;
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut state_ns: BTreeMap<_, _> = State::ALL
        .into_iter()
        .map(|state| (state.name().to_owned(), counters.time(state)))
        .collect();
    let rest = ns(uptime).saturating_sub(state_ns.values().sum());
    *state_ns.entry(State::Armed.name().to_owned()).or_default() += rest;
    Some(PollingReport {
        policy: policy.to_string(),
        state_ns,
        naps: counters.naps.get(),
        window_ns: Some(ns(window)).filter(|window| *window != u64::MAX),
        nap_ns: ns(nap),
        gaps_ns: gaps.map(|gap| Some(gap).filter(|gap| *gap < LONGEST_GAP_NS)),
        sleep_cost_ns: cost.sleep,
        wake_latency_ns: cost.wake,
        nap_cost_ns: cost.nap,
        timer_lateness_ns: cost.late,
        suspensions,
        suspended: short && rest < ns(SHORTAGE),
    })
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The address table, with the names of ports.
pub fn macs(rows: &[Row], names: &HashMap<PortId, String>) -> Vec<MacRow> {
    let named = |row: &Row| {
        // A port that is being removed has no name any more.
        let port = names.get(&row.port)?.clone();
        let station = row.station;
        Some(MacRow {
            vlan: station.network.vid(),
            mac: station.mac.to_string(),
            port,
            locked: row.idle.is_none(),
            idle_seconds: row.idle,
        })
    };
    rows.iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests;
