use std::collections::BTreeSet;

use super::*;
use crate::api::{
    Counts, DiskCounts, DiskQueueReport, DiskReport, Durations, MemoryReport, OverlayReport,
    PollingReport, PortReport, QueueReport, WorkerReport,
};

/// A report in which everything is there, and no value is zero.
fn full() -> Stats {
    let counts = Counts {
        tx_frames: 7,
        waited_ns: 1_500_000_000,
        drops: [("rx_full".to_owned(), 3)].into(),
        ..Counts::default()
    };
    let memory = Some(MemoryReport { allocated_bytes: 4096, limit_bytes: 1 << 30 });
    let port = PortReport {
        name: "vm \"a\"\\\n".to_owned(),
        state: PortState::Connected,
        memory,
        total: counts.clone(),
        waits: Durations { counts: vec![1; 26], sum_ns: 2_000_000_000 },
        queues: vec![QueueReport { index: 1, counts, ..QueueReport::default() }],
        ..PortReport::default()
    };
    let counts = DiskCounts { errors: [("io".to_owned(), 2)].into(), ..DiskCounts::default() };
    let disk = DiskReport {
        name: "root".to_owned(),
        kind: "vhost_user".to_owned(),
        image: "/srv/a.raw".to_owned(),
        bytes: Some(1 << 40),
        latency: [("read".to_owned(), Durations { counts: vec![1; 26], sum_ns: 1 })].into(),
        memory,
        total: counts.clone(),
        queues: vec![DiskQueueReport { counts, ..DiskQueueReport::default() }],
        ..DiskReport::default()
    };
    let polling = PollingReport {
        state_ns: BTreeMap::from([("busy".to_owned(), 2_000_000_000)]),
        window_ns: Some(50_000),
        ..PollingReport::default()
    };
    let overlay = OverlayReport {
        name: "net".to_owned(),
        mtu: Some(1450),
        drops: [("unknown_vtep".to_owned(), 1)].into(),
        ..OverlayReport::default()
    };
    Stats {
        release: "1.2.3".to_owned(),
        workers: vec![WorkerReport {
            polling: Some(polling),
            busy: Durations { counts: vec![1; 26], sum_ns: 1 },
            ..WorkerReport::default()
        }],
        interrupt_thread_interrupts: Some(1),
        ports: vec![port],
        overlays: vec![overlay],
        disks: vec![disk],
        removed: Counts { drops: [("runt".to_owned(), 1)].into(), ..Counts::default() },
        ..Stats::default()
    }
}

/// A table of all families, as the page has it.
fn table() -> String {
    fn rows<T>(labels: &str, families: &[Family<T>]) -> String {
        let row = |family: &Family<T>| row(family.name, family.kind, labels, family.help);
        families.iter().map(row).collect()
    }
    fn row(name: &str, kind: Type, labels: &str, help: &str) -> String {
        let labels: Vec<String> =
            labels.split(", ").filter(|it| !it.is_empty()).map(|it| format!("`{it}`")).collect();
        format!("| `{name}` | {} | {} | {help} |\n", kind.word(), labels.join(", "))
    }
    let special = |prefix: &str| -> String {
        let wanted = SPECIAL.iter().filter(|family| family.0.starts_with(prefix));
        wanted.map(|(name, kind, labels, help)| row(name, *kind, labels, help)).collect()
    };
    [
        special("ringmain_build"),
        rows("", DAEMON),
        rows("worker", WORKER),
        rows("worker", POLLING),
        special("ringmain_worker"),
        special("ringmain_port"),
        rows("port", PORT),
        rows("port, queue", QUEUE),
        special("ringmain_removed"),
        special("ringmain_overlay"),
        rows("overlay", OVERLAY),
        special("ringmain_disk"),
        rows("disk", DISK),
        rows("disk, queue", DISK_QUEUE),
    ]
    .concat()
}

#[test]
fn the_page_lists_all_metrics() {
    let page = include_str!("../../../../../docs/metrics.md");
    for row in table().lines() {
        assert!(page.contains(row), "docs/metrics.md lacks or contradicts: {row}");
    }
    let listed = page.lines().filter(|line| line.starts_with("| `ringmain_")).count();
    assert_eq!(listed, table().lines().count(), "docs/metrics.md lists what there is not");
}

#[test]
fn every_family_is_there_once_with_its_samples_behind_it() {
    let text = text(&full());
    let mut families = BTreeSet::new();
    let (mut present, mut histogram) = ("", false);
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(families.insert(name) && help.ends_with('.'), "{line}");
            present = name;
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!((name, kind == "counter"), (present, name.ends_with("_total")), "{line}");
            histogram = kind == "histogram";
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let suffixes: &[&str] = if histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
            let suffix = name.strip_prefix(present).expect(line);
            assert!(suffixes.contains(&suffix), "{line}");
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
        }
    }
    assert_eq!(families.len(), table().lines().count(), "{families:#?}");
}

#[test]
fn values_have_base_units_and_labels_are_escaped() {
    let text = text(&full());
    for line in [
        r#"ringmain_build_info{version="1.2.3"} 1"#,
        r#"ringmain_port_transmit_frames_total{port="vm \"a\"\\\n",queue="1"} 7"#,
        r#"ringmain_port_wait_seconds_total{port="vm \"a\"\\\n",queue="1"} 1.5"#,
        r#"ringmain_port_state{port="vm \"a\"\\\n",state="connected"} 1"#,
        r#"ringmain_port_state{port="vm \"a\"\\\n",state="down"} 0"#,
        r#"ringmain_port_dropped_frames_total{port="vm \"a\"\\\n",reason="rx_full"} 3"#,
        r#"ringmain_worker_state_seconds_total{worker="0",state="busy"} 2"#,
        r#"ringmain_worker_poll_window_seconds{worker="0"} 0.00005"#,
        r#"ringmain_disk_info{disk="root",kind="vhost-user",image="/srv/a.raw"} 1"#,
        r#"ringmain_disk_size_bytes{disk="root"} 1099511627776"#,
        r#"ringmain_disk_failed_requests_total{disk="root",reason="io"} 2"#,
        r#"ringmain_disk_request_seconds_bucket{disk="root",operation="read",le="+Inf"} 26"#,
        r#"ringmain_disk_request_seconds_count{disk="root",operation="read"} 26"#,
        r#"ringmain_port_room_wait_seconds_sum{port="vm \"a\"\\\n"} 2"#,
    ] {
        assert!(text.lines().any(|it| it == line), "no line {line} in\n{text}");
    }
}

#[test]
fn what_is_not_there_has_no_family() {
    let text = text(&Stats::default());
    assert!(text.contains("ringmain_uptime_seconds 0\n"), "{text}");
    assert!(!text.contains("ringmain_port_") && !text.contains("ringmain_disk_"), "{text}");
}

/// All values of `key` in a JSON document.
fn values<'a>(json: &'a serde_json::Value, key: &str, found: &mut Vec<&'a str>) {
    match json {
        serde_json::Value::Array(items) => items.iter().for_each(|it| values(it, key, found)),
        serde_json::Value::Object(fields) => {
            found.extend(fields.get(key).and_then(|it| it.as_str()));
            fields.values().for_each(|it| values(it, key, found));
        }
        _ => {}
    }
}

#[test]
fn grafana_asks_for_metrics_that_there_are() {
    let file = include_str!("../../../../../grafana/ringmain.json");
    let dashboard: serde_json::Value = serde_json::from_str(file).unwrap();
    let mut queries = Vec::new();
    values(&dashboard, "expr", &mut queries);
    values(&dashboard, "query", &mut queries);
    let table = table();
    let mut asked = BTreeSet::new();
    for query in queries {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for name in query.split(|c| !is_part(c)).filter(|word| word.starts_with("ringmain_")) {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
            let row = match family {
                Some(family) => format!("| `{family}` | histogram |"),
                None => format!("| `{name}` |"),
            };
            assert!(table.contains(&row), "there is no {name}, in {query}");
            asked.insert(name);
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
}
