//! Reports of the daemon, for people.

use control::api::{CacheReport, CopyMethod, Counts, MacRow, PortReport, Stats};
use serde_json::Value as Json;

use crate::limits;
use crate::show_disk;
use crate::table::Table;
use crate::units::{self, duration};
use crate::waiting::waiting;

/// `ringmain port list`.
pub fn ports(ports: &[PortReport]) -> String {
    if ports.is_empty() {
        return "no ports; add one with `ringmain port add`\n".to_owned();
    }
    let mut table = Table::new(&[
        "PORT",
        "KIND",
        "STATE",
        ">QUEUES",
        "VLAN",
        "LOCKED TO",
        ">MTU",
        "SOCKET OR DEVICE",
    ]);
    for port in ports {
        table.row([
            port.name.clone(),
            port.kind.to_string(),
            port.state.name().to_owned(),
            format!("{}/{}", in_use(port), port.queue_pairs),
            vlan(port),
            port.mac.clone().unwrap_or_default(),
            optional(port.mtu),
            endpoint(port),
        ]);
    }
    table.render()
}

/// `ringmain port show`.
pub fn port(port: &PortReport) -> String {
    let mut lines = vec![("port", port.name.clone()), ("kind", port.kind.to_string())];
    let endpoint = endpoint(port);
    if !endpoint.is_empty() {
        lines.push((if port.device.is_some() { "device" } else { "socket" }, endpoint));
    }
    lines.push(("state", port.state.name().to_owned()));
    if let Some(reason) = &port.reason {
        lines.push(("reason", reason.clone()));
    }
    if let Some(peer) = port.peer {
        lines.push(("peer", format!("process {peer}, connection {}", port.connections)));
    }
    if port.violations > 0 {
        lines.push(("violations", port.violations.to_string()));
    }
    if port.control_delayed > 0 {
        let delayed = format!("{} messages or changes of state", port.control_delayed);
        lines.push(("delayed", delayed));
    }
    if port.recovered_rings > 0 {
        lines.push(("recovered", format!("{} rings", port.recovered_rings)));
    }
    lines.push(("queue pairs", format!("{} in use, {} at most", in_use(port), port.queue_pairs)));
    lines.push(("vlan", if vlan(port).is_empty() { "none".to_owned() } else { vlan(port) }));
    lines.push(("locked to", port.mac.clone().unwrap_or_else(|| "no address".to_owned())));
    lines.push(("mtu", port.mtu.map_or_else(|| "no limit".to_owned(), |mtu| mtu.to_string())));
    lines.extend(limits::port(port));
    if let Some(queue) = &port.device_queue {
        lines.push(("device queue", queue.clone()));
    }
    if !port.features.is_empty() {
        lines.push(("features", port.features.join(" ")));
    }
    if let Some(memory) = &port.memory {
        lines.push(("memory", limits::memory(memory)));
    }
    if let Some(cache) = &port.cache {
        lines.push(("mapped pages", mapped_pages(cache)));
    }
    if let Some(own) = &port.guest_copies {
        let (bytes, calls, seconds) = (own.bytes, own.calls, own.cpu_us as f64 / 1e6);
        lines.push((
            "guest copies",
            format!("{bytes} bytes in {calls} calls, {seconds:.1} s of CPU time"),
        ));
    }
    if let Some(store) = port.store.filter(|store| store.refused > 0 || store.throttled_us > 0) {
        let (refused, seconds) = (store.refused, store.throttled_us as f64 / 1e6);
        lines.push(("store", format!("{refused} requests refused, {seconds:.1} s left waiting")));
    }
    lines.extend(requests(port));
    let mut text: String =
        lines.into_iter().map(|(what, value)| format!("{what:<12} {value}\n")).collect();
    text.push_str(&options(port));
    if !port.queues.is_empty() {
        text.push('\n');
        text.push_str(&queues(std::slice::from_ref(port)));
    }
    text + &drops(std::slice::from_ref(port))
}

/// The counts of the port's ARP and neighbour discovery, if there are any.
fn requests(port: &PortReport) -> Vec<(&'static str, String)> {
    let (answered, refused) = (port.total.answered_requests, port.total.refused_addresses);
    let mut lines = Vec::new();
    if answered > 0 {
        lines.push(("answered", format!("{answered} requests for guests on other hosts")));
    }
    if refused > 0 {
        lines.push(("not learned", format!("{refused} times an address that the guest showed")));
    }
    lines
}

/// A guest's pages that stay mapped, and how often they saved a grant operation.
fn mapped_pages(CacheReport { pages, limit, hits, misses }: &CacheReport) -> String {
    let rate = if hits + misses == 0 { 0.0 } else { 100.0 * *hits as f64 / (hits + misses) as f64 };
    format!("{pages} of {limit} pages, {hits} hits, {misses} misses ({rate:.1} %)")
}

/// The options of a port, by the keys of the configuration; empty if the port has none.
fn options(port: &PortReport) -> String {
    let mut table = Table::new(&["OPTION", "VALUE"]);
    for (key, value) in &port.options {
        let value = match value {
            Json::Null => String::new(),
            Json::String(text) => text.clone(),
            value => value.to_string(),
        };
        table.row([key.replace('_', "-"), value]);
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

/// `ringmain stats`.
pub fn stats(stats: &Stats) -> String {
    let mut text = format!(
        "ringmain {}, process {}, up {}, {:.1} s of CPU time\n\n",
        stats.release,
        stats.pid,
        duration(stats.uptime_seconds),
        stats.cpu_seconds
    );
    text.push_str(&workers(stats));
    text.push_str(&copies(&stats.copies));
    text.push_str(&waiting(stats));
    text.push('\n');
    text.push_str(&queues(&stats.ports));
    text.push_str(&drops(&stats.ports));
    text.push_str(&limits::waits(&stats.ports));
    if !stats.disks.is_empty() {
        text.push('\n');
        text.push_str(&show_disk::queues(&stats.disks));
        text.push_str(&show_disk::errors(&stats.disks));
    }
    text
}

/// How long copies are made, as one line.
fn copies(copies: &[CopyMethod]) -> String {
    let words: Vec<String> = copies
        .iter()
        .map(|CopyMethod { from, method }| format!("of {from} bytes and more: {method}"))
        .collect();
    if words.is_empty() { String::new() } else { format!("copies {}\n", words.join("; ")) }
}

/// `ringmain mac`.
pub fn macs(rows: &[MacRow]) -> String {
    if rows.is_empty() {
        return "no address has been learned yet\n".to_owned();
    }
    let mut table = Table::new(&[">VLAN", "ADDRESS", "PORT", ">LAST FRAME"]);
    for row in rows {
        let last = row
            .idle_seconds
            .map_or_else(|| "locked".to_owned(), |seconds| format!("{seconds} s ago"));
        table.row([optional(row.vlan), row.mac.clone(), row.port.clone(), last]);
    }
    table.render()
}

fn workers(stats: &Stats) -> String {
    let mut table = Table::new(&[
        "WORKER",
        ">CPU",
        ">LOAD",
        ">BUSY PASSES",
        ">IDLE PASSES",
        ">SLEEPS",
        ">CACHE HITS",
        ">MISSES",
        ">HANDED OFF",
        ">REBALANCED",
    ]);
    for worker in &stats.workers {
        table.row([
            worker.index.to_string(),
            optional(worker.cpu),
            worker.load.map_or_else(|| "-".to_owned(), |load| format!("{load} %")),
            worker.busy_passes.to_string(),
            worker.idle_passes.to_string(),
            worker.sleeps.to_string(),
            worker.cache_hits.to_string(),
            worker.cache_misses.to_string(),
            worker.handed_off.to_string(),
            worker.rebalanced.to_string(),
        ]);
    }
    let mut text = table.render();
    if stats.queue_migrations > 0 {
        let number = units::count(stats.queue_migrations, "migration");
        text += &format!("{number} of queues between workers\n");
    }
    if let Some(sent) = stats.interrupt_thread_interrupts {
        text += &format!("{} sent by the thread for interrupts\n", units::count(sent, "interrupt"));
    }
    text
}

/// A line for each queue, and a sum for ports with several.
fn queues(ports: &[PortReport]) -> String {
    let mut table = Table::new(&[
        "PORT",
        ">QUEUE",
        ">WORKER",
        ">TX FRAMES",
        ">TX BYTES",
        ">RX FRAMES",
        ">RX BYTES",
        ">INTERRUPTS",
        ">FRAMES/INT",
        ">DROPS",
    ]);
    for port in ports {
        for queue in &port.queues {
            let number = if queue.device { "device".to_owned() } else { queue.index.to_string() };
            let place = [port.name.clone(), number, optional(queue.worker)];
            table.row(place.into_iter().chain(counts(&queue.counts)));
        }
        if port.queues.len() != 1 {
            let place = [port.name.clone(), "all".to_owned(), String::new()];
            table.row(place.into_iter().chain(counts(&port.total)));
        }
    }
    if table.is_empty() { "no ports\n".to_owned() } else { table.render() }
}

/// The cells of a row. Frames that a device put on an Rx ring count as received.
fn counts(counts: &Counts) -> [String; 7] {
    let interrupts = counts.tx_interrupts + counts.rx_interrupts;
    let received = counts.rx_frames + counts.direct_frames;
    [
        counts.tx_frames.to_string(),
        counts.tx_bytes.to_string(),
        received.to_string(),
        (counts.rx_bytes + counts.direct_bytes).to_string(),
        interrupts.to_string(),
        per(counts.tx_frames + received, interrupts),
        counts.dropped().to_string(),
    ]
}

/// Drops by reason; nothing if there are none.
fn drops(ports: &[PortReport]) -> String {
    let mut table = Table::new(&["PORT", "DROP REASON", ">FRAMES"]);
    for port in ports {
        for (reason, frames) in port.total.drops.iter().filter(|(_, frames)| **frames > 0) {
            table.row([port.name.clone(), reason.clone(), frames.to_string()]);
        }
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

/// A ratio with one decimal; empty if there is nothing to divide by.
fn per(what: u64, by: u64) -> String {
    if by == 0 { String::new() } else { format!("{:.1}", what as f64 / by as f64) }
}

fn in_use(port: &PortReport) -> usize {
    port.queues.iter().filter(|queue| queue.worker.is_some() && !queue.device).count()
}

fn vlan(port: &PortReport) -> String {
    let trunk: Vec<String> = port.trunk.iter().map(u16::to_string).collect();
    match port.vlan {
        Some(vlan) => vlan.to_string(),
        None if trunk.is_empty() => String::new(),
        None => format!("tagged {}", trunk.join(",")),
    }
}

fn endpoint(port: &PortReport) -> String {
    match port.mode.as_deref() {
        Some("client") => format!("{} (client)", port.endpoint()),
        _ => port.endpoint().to_owned(),
    }
}

fn optional(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
pub mod tests;
