//! Counters and memory of a daemon over time.

use super::*;

/// Sum of a counter over all ports.
fn sum(stats: &Json, counter: &str) -> u64 {
    let ports = stats["ports"].as_array().unwrap();
    ports.iter().map(|port| port["total"][counter].as_u64().unwrap()).sum()
}

fn drops(counts: &Json) -> u64 {
    counts["drops"].as_object().unwrap().values().map(|frames| frames.as_u64().unwrap()).sum()
}

#[test]
fn every_frame_is_delivered_or_dropped_for_a_reason() {
    let daemon = Daemon::start(PORTS);
    let sockets =
        format!("{},{}", daemon.path("vm-a.sock").display(), daemon.path("vm-b.sock").display());
    let options = "--direction both --queues 2 --duration 0.2 --warm-up 0";
    let words = ["--ports", &sockets].into_iter().chain(options.split(' '));
    let report = load::run(&load::Args::from_words(words).unwrap()).unwrap();
    assert!(report.directions.iter().all(|direction| direction.received > 0), "{report}");

    let stats = daemon.json(&["stats", "--json"]);
    let dropped: u64 =
        stats["ports"].as_array().unwrap().iter().map(|port| drops(&port["total"])).sum();
    assert!(sum(&stats, "tx_frames") > 0);
    assert_eq!(
        sum(&stats, "tx_frames") + sum(&stats, "copies"),
        sum(&stats, "rx_frames") + dropped,
        "{stats:#}"
    );

    // The counters of a port that goes are kept in a sum.
    daemon.ask(&["port", "remove", "vm-a"]);
    let after = daemon.json(&["stats", "--json"]);
    let removed = after["removed"]["tx_frames"].as_u64().unwrap();
    assert_eq!(removed + sum(&after, "tx_frames"), sum(&stats, "tx_frames"));
}

/// Memory of its own in KiB, threads, open descriptors.
fn footprint(daemon: &Daemon) -> (u64, u64, usize) {
    let process = format!("/proc/{}", daemon.child.id());
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    (field("RssAnon:"), field("Threads:"), fs::read_dir(format!("{process}/fd")).unwrap().count())
}

#[test]
fn adding_and_removing_ports_leaks_nothing() {
    let daemon = Daemon::start(PORTS);
    let client = Client::new(daemon.path("control.sock"));
    let socket = daemon.path("x.sock");
    let mut port = serde_json::Map::new();
    port.insert("name".to_owned(), "x".into());
    port.insert("kind".to_owned(), "vhost-user".into());
    port.insert("socket".to_owned(), socket.to_str().into());
    port.insert("queues".to_owned(), 4.into());
    let cycles = |n| {
        for _ in 0..n {
            client.ask(&Request::PortAdd { port: port.clone() }).unwrap();
            client.ask(&Request::PortRemove { name: "x".to_owned() }).unwrap();
        }
    };
    // A thread of the last request may just be ending.
    let settled = || {
        let mut last = footprint(&daemon);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = footprint(&daemon);
            if (now.1, now.2) == (last.1, last.2) {
                return now;
            }
            last = now;
        }
    };
    // What the allocator keeps grows to some hundred KiB, and no further.
    cycles(5000);
    let (memory, threads, descriptors) = settled();
    cycles(10_000);
    let (memory_after, threads_after, descriptors_after) = settled();
    assert_eq!(threads_after, threads);
    assert!(
        descriptors_after <= descriptors + 2,
        "{descriptors} descriptors became {descriptors_after}"
    );
    assert!(memory_after <= memory + 512, "{memory} KiB became {memory_after} KiB");
}
