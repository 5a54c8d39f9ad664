use super::*;
use control::api::{LimitsReport, PortState, QueueReport, WorkerReport};
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
        control_delayed: 0,
        recovered_rings: 0,
        memory: None,
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
        limits: LimitsReport::default(),
        budget: None,
        addresses: vec![],
        security_groups: Vec::new(),
        tracked_connections: None,
        mirror: None,
        cache: Some(CacheReport { pages: 768, limit: 1024, hits: 995, misses: 5 }),
        device_queue: None,
        features: vec!["csum".into(), "mq".into()],
        guest_copies: None,
        store: None,
        queue_pairs: 4,
        waits: Default::default(),
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
fn a_port_says_how_many_of_its_requests_were_answered() {
    assert!(!port(&sample()).contains("answered"));
    let mut asked = sample();
    asked.total = Counts { answered_requests: 7, refused_addresses: 3, ..asked.total };
    let text = port(&asked);
    assert!(text.contains("\nanswered     7 requests for guests on other hosts\n"), "{text}");
    assert!(text.contains("\nnot learned  3 times an address that the guest showed\n"), "{text}");
}

#[test]
fn counters_are_shown_in_tables() {
    let stats = Stats {
        sandbox: Vec::new(),
        copies: vec![
            CopyMethod { from: 2049, method: "memmove".into() },
            CopyMethod { from: 8193, method: "rep movsb".into() },
        ],
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
        interrupt_thread_interrupts: Some(7000),
        ports: vec![],
        overlays: vec![],
        disks: Vec::new(),
        removed: Counts::default(),
    };
    let want = "\
ringmain 0.1.0, process 7, up 1 min 1 s, 1.2 s of CPU time

WORKER  CPU  LOAD  BUSY PASSES  IDLE PASSES  SLEEPS  CACHE HITS  MISSES  HANDED OFF  REBALANCED
0         3  87 %            0            0       9           0       0           0           2
1 migration of queues between workers
7000 interrupts sent by the thread for interrupts
copies of 2049 bytes and more: memmove; of 8193 bytes and more: rep movsb

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
        macs(&[row(None, "52:54:00:00:00:01", None), row(Some(10), "52:54:00:00:00:02", Some(12))]),
        want
    );
}
