//! The counters of queue pairs, as reports have them.

use network::count::{DropReason, QueueCounters};
use network::fabric::Fabric;
use switch::PortId;

use crate::api::Counts;

/// No frames, and none dropped for any reason.
pub fn no_counts() -> Counts {
    let drops = DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), 0)).collect();
    Counts { drops, ..Counts::default() }
}

/// Adds to `sum` the counts of the ports that `end` removes.
pub fn add_removed(sum: &mut Counts, fabric: &Fabric, ports: &[PortId], end: impl FnOnce()) {
    // Workers continue to count while the ports are removed.
    let counters: Vec<_> = ports.iter().flat_map(|port| fabric.counters(*port)).collect();
    end();
    counters.iter().for_each(|queue| sum.add(&counts(queue)));
}

/// The counters of a queue pair at this moment.
pub fn counts(queue: &QueueCounters) -> Counts {
    let dropped = |reason: &DropReason| (reason.name().to_owned(), queue.dropped(*reason));
    let drops = DropReason::ALL.iter().map(dropped).collect();
    Counts {
        tx_frames: queue.tx.frames.get(),
        tx_bytes: queue.tx.bytes.get(),
        tx_bursts: queue.tx.bursts.get(),
        tx_interrupts: queue.tx.interrupts.get(),
        tx_suppressed: queue.tx.suppressed.get(),
        rx_frames: queue.rx.frames.get(),
        rx_bytes: queue.rx.bytes.get(),
        rx_bursts: queue.rx.bursts.get(),
        rx_interrupts: queue.rx.interrupts.get(),
        rx_suppressed: queue.rx.suppressed.get(),
        rx_deferred: queue.rx.deferred.get(),
        direct_frames: queue.direct.frames.get(),
        direct_bytes: queue.direct.bytes.get(),
        copies: queue.copies.get(),
        blocked: queue.blocked.get(),
        waited_ns: queue.waits.sum(),
        tx_limited: queue.tx_limited.get(),
        page_faults: queue.page_faults.get(),
        fault_waits: queue.fault_waits.get(),
        slow_interrupts: queue.slow_interrupts.get(),
        answered_requests: queue.answered_requests.get(),
        refused_addresses: queue.refused_addresses.get(),
        kicks: queue.kicks.get(),
        drops,
    }
}

/// Adds another process' counts to the counters of a queue pair that no worker serves yet.
pub fn continue_counts(queue: &QueueCounters, counts: &Counts) {
    for (counter, count) in [
        (&queue.tx.frames, counts.tx_frames),
        (&queue.tx.bytes, counts.tx_bytes),
        (&queue.tx.bursts, counts.tx_bursts),
        (&queue.tx.interrupts, counts.tx_interrupts),
        (&queue.tx.suppressed, counts.tx_suppressed),
        (&queue.rx.frames, counts.rx_frames),
        (&queue.rx.bytes, counts.rx_bytes),
        (&queue.rx.bursts, counts.rx_bursts),
        (&queue.rx.interrupts, counts.rx_interrupts),
        (&queue.rx.suppressed, counts.rx_suppressed),
        (&queue.rx.deferred, counts.rx_deferred),
        (&queue.direct.frames, counts.direct_frames),
        (&queue.direct.bytes, counts.direct_bytes),
        (&queue.copies, counts.copies),
        (&queue.blocked, counts.blocked),
        (&queue.tx_limited, counts.tx_limited),
        (&queue.page_faults, counts.page_faults),
        (&queue.fault_waits, counts.fault_waits),
        (&queue.slow_interrupts, counts.slow_interrupts),
        (&queue.answered_requests, counts.answered_requests),
        (&queue.refused_addresses, counts.refused_addresses),
        (&queue.kicks, counts.kicks),
    ] {
        counter.add(count);
    }
    for reason in DropReason::ALL {
        queue.lose(*reason, counts.drops.get(reason.name()).copied().unwrap_or(0));
    }
}
