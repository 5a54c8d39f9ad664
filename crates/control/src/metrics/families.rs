//! The families of metrics, by what they belong to.

use super::family::{Family, Type, counter, gauge, microseconds, nanoseconds, number};
use crate::api::{Counts, OverlayReport, PollingReport, PortReport, Stats, WorkerReport};

/// Families of the daemon, without labels.
pub const DAEMON: &[Family<Stats>] = &[
    gauge("ringmain_uptime_seconds", "Time since the daemon started.", |it| {
        Some(it.uptime_seconds)
    }),
    counter("ringmain_cpu_seconds_total", "CPU time that the daemon has used.", |it| {
        Some(it.cpu_seconds)
    }),
    counter("ringmain_queue_migrations_total", "Queue pairs that changed workers.", |it| {
        number(it.queue_migrations)
    }),
    counter(
        "ringmain_interrupt_thread_interrupts_total",
        "Interrupts that the thread for interrupts has sent; absent without such a thread.",
        |it| it.interrupt_thread_interrupts.and_then(number),
    ),
];

/// Families of workers, with the label `worker`.
pub const WORKER: &[Family<WorkerReport>] = &[
    counter("ringmain_worker_busy_passes_total", "Passes that found work in the queues.", |it| {
        number(it.busy_passes)
    }),
    counter(
        "ringmain_worker_idle_passes_total",
        "Passes that found no work in the queues.",
        |it| number(it.idle_passes),
    ),
    counter(
        "ringmain_worker_busy_seconds_total",
        "Time of passes that found work in the queues.",
        |it| microseconds(it.busy_us),
    ),
    counter("ringmain_worker_sleeps_total", "Times that the worker slept in the kernel.", |it| {
        number(it.sleeps)
    }),
    counter(
        "ringmain_worker_flow_cache_hits_total",
        "Frames whose flow was in the flow cache.",
        |it| number(it.cache_hits),
    ),
    counter(
        "ringmain_worker_flow_cache_misses_total",
        "Frames that needed a forwarding decision of the switch.",
        |it| number(it.cache_misses),
    ),
    counter(
        "ringmain_worker_handoff_batches_total",
        "Batches of frames handed to other workers.",
        |it| number(it.handoff_batches),
    ),
    counter("ringmain_worker_handoff_frames_total", "Frames handed to other workers.", |it| {
        number(it.handed_off)
    }),
    counter(
        "ringmain_worker_rebalanced_flows_total",
        "Times that flows of a receiver were moved to another of its queues.",
        |it| number(it.rebalanced),
    ),
];

/// Families of how workers wait, with the label `worker`.
pub const POLLING: &[Family<PollingReport>] = &[
    counter(
        "ringmain_worker_naps_total",
        "Sleeps that a timer ends; ringmain_worker_sleeps_total includes them.",
        |it| number(it.naps),
    ),
    gauge(
        "ringmain_worker_poll_window_seconds",
        "Time that the worker polls before it enables notifications; absent if unlimited.",
        |it| it.window_ns.and_then(nanoseconds),
    ),
    gauge("ringmain_worker_nap_seconds", "Length of a nap; 0 if the worker spins instead.", |it| {
        nanoseconds(it.nap_ns)
    }),
    gauge(
        "ringmain_worker_wake_latency_seconds",
        "Time from a signal until the worker runs.",
        |it| nanoseconds(it.wake_latency_ns),
    ),
    counter(
        "ringmain_worker_poll_suspensions_total",
        "Times that polling was suspended because the host was short of CPU time.",
        |it| number(it.suspensions),
    ),
    gauge("ringmain_worker_poll_suspended", "1 while polling is suspended, else 0.", |it| {
        number(it.suspended.into())
    }),
];

/// Families of ports, with the label `port`.
pub const PORT: &[Family<PortReport>] = &[
    counter("ringmain_port_connections_total", "Connections of front-ends.", |it| {
        number(it.connections)
    }),
    counter(
        "ringmain_port_violations_total",
        "Connections that were ended because the peer broke the protocol.",
        |it| number(it.violations),
    ),
    counter(
        "ringmain_port_control_delayed_total",
        "Messages of the front-end that waited for the control budget.",
        |it| number(it.control_delayed),
    ),
    counter(
        "ringmain_port_recovered_rings_total",
        "Rings that continued at another position than the front-end's.",
        |it| number(it.recovered_rings),
    ),
    counter(
        "ringmain_port_unclear_rings_total",
        "Rings whose descriptors did not show their position.",
        |it| number(it.unclear_rings),
    ),
    gauge(
        "ringmain_port_allocated_memory_bytes",
        "Upper bound of the guest memory that is charged to the daemon.",
        |it| number(it.memory?.allocated_bytes),
    ),
    gauge(
        "ringmain_port_memory_limit_bytes",
        "Limit of the guest memory that is charged to the daemon.",
        |it| number(it.memory?.limit_bytes),
    ),
    gauge("ringmain_port_queue_pairs", "Maximum number of queue pairs of the port.", |it| {
        number(it.queue_pairs.into())
    }),
];

/// Families of queue pairs, with the labels `port` and `queue`.
pub const QUEUE: &[Family<Counts>] = &[
    counter("ringmain_port_transmit_frames_total", "Frames fetched from the guest.", |it| {
        number(it.tx_frames)
    }),
    counter(
        "ringmain_port_transmit_bytes_total",
        "Bytes of frames fetched from the guest.",
        |it| number(it.tx_bytes),
    ),
    counter(
        "ringmain_port_transmit_bursts_total",
        "Bursts that fetched at least one frame.",
        |it| number(it.tx_bursts),
    ),
    counter(
        "ringmain_port_transmit_interrupts_total",
        "Interrupts sent for completed entries of the Tx ring.",
        |it| number(it.tx_interrupts),
    ),
    counter(
        "ringmain_port_transmit_interrupts_suppressed_total",
        "Times that completed entries of the Tx ring were published without an interrupt, as the guest asked.",
        |it| number(it.tx_suppressed),
    ),
    counter(
        "ringmain_port_transmit_limited_total",
        "Times that frames waited in the guest's ring because of a rate limit.",
        |it| number(it.tx_limited),
    ),
    counter("ringmain_port_receive_frames_total", "Frames delivered to the guest.", |it| {
        number(it.rx_frames)
    }),
    counter("ringmain_port_receive_bytes_total", "Bytes of frames delivered to the guest.", |it| {
        number(it.rx_bytes)
    }),
    counter(
        "ringmain_port_receive_bursts_total",
        "Bursts that delivered at least one frame.",
        |it| number(it.rx_bursts),
    ),
    counter(
        "ringmain_port_receive_interrupts_total",
        "Interrupts sent for entries of the Rx ring.",
        |it| number(it.rx_interrupts),
    ),
    counter(
        "ringmain_port_receive_interrupts_suppressed_total",
        "Times that entries of the Rx ring were published without an interrupt, as the guest asked.",
        |it| number(it.rx_suppressed),
    ),
    counter(
        "ringmain_port_receive_interrupts_deferred_total",
        "Times that an interrupt for the Rx ring was deferred, so that later entries share it.",
        |it| number(it.rx_deferred),
    ),
    counter(
        "ringmain_port_direct_frames_total",
        "Frames that a device wrote into the guest's buffers, not included in delivered frames.",
        |it| number(it.direct_frames),
    ),
    counter(
        "ringmain_port_direct_bytes_total",
        "Bytes of frames that a device wrote into the guest's buffers.",
        |it| number(it.direct_bytes),
    ),
    counter(
        "ringmain_port_copied_frames_total",
        "Additional frames from flooding and segmentation.",
        |it| number(it.copies),
    ),
    counter(
        "ringmain_port_blocked_frames_total",
        "Times that a frame was held back because a receiver was full.",
        |it| number(it.blocked),
    ),
    counter(
        "ringmain_port_wait_seconds_total",
        "Time that senders waited because the Rx ring of this queue was full.",
        |it| nanoseconds(it.waited_ns),
    ),
    counter(
        "ringmain_port_page_faults_total",
        "Page faults in the guest's memory, counted only while a worker has many page faults.",
        |it| number(it.page_faults),
    ),
    counter(
        "ringmain_port_fault_waits_total",
        "Times that frames waited because page faults in the guest's memory had taken too long.",
        |it| number(it.fault_waits),
    ),
    counter("ringmain_port_slow_interrupts_total", "Interrupts that took long to send.", |it| {
        number(it.slow_interrupts)
    }),
    counter(
        "ringmain_port_answered_requests_total",
        "Address resolution requests for guests on other hosts that the daemon answered.",
        |it| number(it.answered_requests),
    ),
    counter(
        "ringmain_port_refused_addresses_total",
        "Times that an IP address claimed by the guest was not learned.",
        |it| number(it.refused_addresses),
    ),
    counter("ringmain_port_kicks_total", "Notifications from the guest.", |it| number(it.kicks)),
];

/// Families of overlays, with the label `overlay`.
pub const OVERLAY: &[Family<OverlayReport>] = &[
    counter(
        "ringmain_overlay_received_datagrams_total",
        "Datagrams received from the underlay, including refused datagrams.",
        |it| number(it.datagrams_received),
    ),
    counter(
        "ringmain_overlay_receive_calls_total",
        "System calls that received datagrams.",
        |it| number(it.receive_calls),
    ),
    counter(
        "ringmain_overlay_sent_datagrams_total",
        "Datagrams that the kernel accepted for sending.",
        |it| number(it.datagrams_sent),
    ),
    counter("ringmain_overlay_send_calls_total", "System calls that sent datagrams.", |it| {
        number(it.send_calls)
    }),
    gauge("ringmain_overlay_mtu_bytes", "Longest IP packet of the overlay's networks.", |it| {
        number(it.mtu?.into())
    }),
    gauge(
        "ringmain_overlay_neighbours",
        "IP addresses of guests on other hosts that EVPN has announced.",
        |it| number(it.neighbours as u64),
    ),
    gauge(
        "ringmain_overlay_announced_addresses",
        "Announced IP addresses of guests on this host.",
        |it| number(it.announced as u64),
    ),
    gauge(
        "ringmain_overlay_learned_addresses",
        "IP addresses learned from frames of guests on this host.",
        |it| number(it.learned as u64),
    ),
    gauge("ringmain_overlay_peers", "Other hosts; each host counts once for each network.", |it| {
        number(it.peers.len() as u64)
    }),
];

/// Families that are written one by one: name, type, labels, help.
pub const SPECIAL: [(&str, Type, &str, &str); 14] = [
    ("ringmain_build_info", Type::Gauge, "version", "Always 1; the label tells the version."),
    (
        "ringmain_worker_state_seconds_total",
        Type::Counter,
        "worker, state",
        "Time in each state: busy, spin, nap, sleep.",
    ),
    (
        "ringmain_worker_pass_seconds",
        Type::Histogram,
        "worker",
        "Length of passes that found work in the queues.",
    ),
    (
        "ringmain_port_info",
        Type::Gauge,
        "port, kind, endpoint",
        "Always 1; the labels tell what the port is.",
    ),
    (
        "ringmain_port_state",
        Type::Gauge,
        "port, state",
        "1 for the state that the port is in, 0 for the others.",
    ),
    (
        "ringmain_port_dropped_frames_total",
        Type::Counter,
        "port, reason",
        "Frames that were dropped.",
    ),
    (
        "ringmain_port_room_wait_seconds",
        Type::Histogram,
        "port",
        "Time that a sender waited because an Rx ring of this port was full.",
    ),
    (
        "ringmain_removed_ports_dropped_frames_total",
        Type::Counter,
        "reason",
        "Frames that were dropped by ports that have been removed.",
    ),
    (
        "ringmain_disk_info",
        Type::Gauge,
        "disk, kind, image",
        "Always 1; the labels tell what the disk is.",
    ),
    (
        "ringmain_disk_state",
        Type::Gauge,
        "disk, state",
        "1 for the state that the disk is in, 0 for the others.",
    ),
    (
        "ringmain_overlay_state",
        Type::Gauge,
        "overlay, state",
        "1 for the state that the overlay is in, 0 for the others.",
    ),
    (
        "ringmain_overlay_dropped_datagrams_total",
        Type::Counter,
        "overlay, reason",
        "Received datagrams that were refused, and sent datagrams that the kernel did not accept.",
    ),
    ("ringmain_disk_failed_requests_total", Type::Counter, "disk, reason", "Requests that failed."),
    (
        "ringmain_disk_request_seconds",
        Type::Histogram,
        "disk, operation",
        "Latency of requests that were carried out: read, write, flush, discard, write_zeroes.",
    ),
];
