//! Reports of the daemon, for people.

use control::api::{CacheReport, Counts, MacRow, PortReport, Stats};
use serde_json::Value as Json;

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
    let mut lines = vec![
        ("port", port.name.clone()),
        ("kind", port.kind.to_string()),
        (if port.device.is_some() { "device" } else { "socket" }, endpoint(port)),
        ("state", port.state.name().to_owned()),
    ];
    if let Some(reason) = &port.reason {
        lines.push(("reason", reason.clone()));
    }
    if let Some(peer) = port.peer {
        lines.push(("peer", format!("process {peer}, connection {}", port.connections)));
    }
    if port.violations > 0 {
        lines.push(("violations", port.violations.to_string()));
    }
    if port.recovered_rings > 0 {
        lines.push(("recovered", format!("{} rings", port.recovered_rings)));
    }
    lines.push(("queue pairs", format!("{} in use, {} at most", in_use(port), port.queue_pairs)));
    lines.push(("vlan", if vlan(port).is_empty() { "none".to_owned() } else { vlan(port) }));
    lines.push(("locked to", port.mac.clone().unwrap_or_else(|| "no address".to_owned())));
    lines.push(("mtu", port.mtu.map_or_else(|| "no limit".to_owned(), |mtu| mtu.to_string())));
    if let Some(queue) = &port.device_queue {
        lines.push(("device queue", queue.clone()));
    }
    if !port.features.is_empty() {
        lines.push(("features", port.features.join(" ")));
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
    let mut text: String =
        lines.into_iter().map(|(what, value)| format!("{what:<12} {value}\n")).collect();
    text.push_str(&options(port));
    if !port.queues.is_empty() {
        text.push('\n');
        text.push_str(&queues(std::slice::from_ref(port)));
    }
    text + &drops(std::slice::from_ref(port))
}

/// A guest's pages that stay mapped, and how often that saved a grant operation.
fn mapped_pages(CacheReport { pages, limit, hits, misses }: &CacheReport) -> String {
    let rate = if hits + misses == 0 { 0.0 } else { 100.0 * *hits as f64 / (hits + misses) as f64 };
    format!("{pages} of {limit} pages, {hits} hits, {misses} misses ({rate:.1} %)")
}

/// The options of a port, by the keys of the configuration; nothing if the port has none.
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
    text.push_str(&waiting(stats));
    text.push('\n');
    text.push_str(&queues(&stats.ports));
    text + &drops(&stats.ports)
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
    let migrations = if stats.queue_migrations > 0 {
        let number = units::count(stats.queue_migrations, "migration");
        format!("{number} of queues between workers\n")
    } else {
        String::new()
    };
    table.render() + &migrations
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

/// Frames that a device put on an Rx ring are received like any others.
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
pub mod tests {
    use super::*;
    use control::api::{PortState, QueueReport, WorkerReport};
    use control::kind::Kind;

    /// A port with two queues; the second is switched off.
    pub fn sample() -> PortReport {
        let drops = [("runt".to_owned(), 0), ("rx_full".to_owned(), 3)].into();
        let counts = Counts {
            tx_frames: 100,
            tx_bytes: 6400,
            rx_frames: 50,
            rx_interrupts: 4,
            drops,
            ..Counts::default()
        };
        let queues = vec![
            QueueReport { index: 0, worker: Some(1), device: false, counts: counts.clone() },
            QueueReport { index: 1, worker: None, device: false, counts: Counts::default() },
        ];
        PortReport {
            name: "vm-a".into(),
            kind: Kind::VhostUser,
            socket: Some("/run/a.sock".into()),
            mode: Some("server".into()),
            device: None,
            state: PortState::Connected,
            reason: None,
            peer: Some(4242),
            connections: 2,
            violations: 0,
            recovered_rings: 0,
            unclear_rings: 0,
            vlan: None,
            trunk: vec![10, 20],
            mac: None,
            mtu: Some(1500),
            options: [
                ("align".into(), false.into()),
                ("interrupt_frames".into(), 64.into()),
                ("interrupt_microseconds".into(), Json::Null),
                ("polling".into(), "eco".into()),
            ]
            .into(),
            cache: Some(CacheReport { pages: 768, limit: 1024, hits: 995, misses: 5 }),
            device_queue: None,
            features: vec!["csum".into(), "mq".into()],
            guest_copies: None,
            queue_pairs: 4,
            total: counts,
            queues,
        }
    }

    #[test]
    fn ports_are_listed_in_a_table() {
        let want = "\
PORT  KIND        STATE      QUEUES  VLAN          LOCKED TO   MTU  SOCKET OR DEVICE
vm-a  vhost-user  connected     1/4  tagged 10,20  -          1500  /run/a.sock
";
        assert_eq!(ports(&[sample()]), want);
        assert!(ports(&[]).contains("ringmain port add"));
    }

    #[test]
    fn a_port_is_shown_in_detail() {
        let want = "\
port         vm-a
kind         vhost-user
socket       /run/a.sock
state        connected
peer         process 4242, connection 2
queue pairs  1 in use, 4 at most
vlan         tagged 10,20
locked to    no address
mtu          1500
features     csum mq
mapped pages 768 of 1024 pages, 995 hits, 5 misses (99.5 %)

OPTION                  VALUE
align                   false
interrupt-frames        64
interrupt-microseconds  -
polling                 eco

PORT  QUEUE  WORKER  TX FRAMES  TX BYTES  RX FRAMES  RX BYTES  INTERRUPTS  FRAMES/INT  DROPS
vm-a      0       1        100      6400         50         0           4        37.5      3
vm-a      1       -          0         0          0         0           0           -      0
vm-a    all       -        100      6400         50         0           4        37.5      3

PORT  DROP REASON  FRAMES
vm-a  rx_full           3
";
        assert_eq!(port(&sample()), want);
    }

    #[test]
    fn counters_are_shown_in_tables() {
        let stats = Stats {
            pid: 7,
            release: "0.1.0".into(),
            uptime_seconds: 61.5,
            cpu_seconds: 1.25,
            workers: vec![WorkerReport {
                index: 0,
                cpu: Some(3),
                load: Some(87),
                sleeps: 9,
                rebalanced: 2,
                ..WorkerReport::default()
            }],
            queue_migrations: 1,
            ports: vec![],
            removed: Counts::default(),
        };
        let want = "\
ringmain 0.1.0, process 7, up 1 min 1 s, 1.2 s of CPU time

WORKER  CPU  LOAD  BUSY PASSES  IDLE PASSES  SLEEPS  CACHE HITS  MISSES  HANDED OFF  REBALANCED
0         3  87 %            0            0       9           0       0           0           2
1 migration of queues between workers

no ports
";
        assert_eq!(super::stats(&stats), want);
    }

    #[test]
    fn addresses_are_shown_in_a_table() {
        let row = |vlan, mac: &str, idle_seconds: Option<u32>| MacRow {
            vlan,
            mac: mac.into(),
            port: "vm-a".into(),
            locked: idle_seconds.is_none(),
            idle_seconds,
        };
        let want = "\
VLAN  ADDRESS            PORT  LAST FRAME
   -  52:54:00:00:00:01  vm-a      locked
  10  52:54:00:00:00:02  vm-a    12 s ago
";
        assert_eq!(
            macs(&[
                row(None, "52:54:00:00:00:01", None),
                row(Some(10), "52:54:00:00:00:02", Some(12))
            ]),
            want
        );
    }
}
