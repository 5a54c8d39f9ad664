//! Memory, threads and descriptors of the daemon with forty ports of four queues, and after ports
//! and front-ends of a disk have come and gone ten thousand times.

use std::fmt::Write;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use control::api::{Reply, Request};
use lab::daemon::Daemon;
use ring::driver::{Direction, DriverRing, Piece, Used};
use ring::split::driver::SplitDriver;
use vhost_user::blk::feature::bit as disk_bit;
use vhost_user::net::feature::bit;
use vhost_user_driver::{Driver, FrontEnd, FrontEndConfig, Guest, Vring};

/// The last lines of the daemon's log: all of it is megabytes here.
fn end_of_log(daemon: &Daemon) -> Vec<String> {
    let log = daemon.log();
    let mut lines: Vec<String> = log.lines().rev().take(20).map(str::to_owned).collect();
    lines.reverse();
    lines
}

/// Has the daemon do what must succeed.
fn done(daemon: &Daemon, request: &Request) {
    let reply = daemon.client().ask(request);
    let reply =
        reply.unwrap_or_else(|error| panic!("{error}; the log ends: {:#?}", end_of_log(daemon)));
    assert_eq!(reply, Reply::Done);
}

/// A guest with some queue pairs.
struct Plugged {
    front: FrontEnd,
    guest: Guest,
    drivers: Vec<Driver<SplitDriver>>,
}

impl Plugged {
    fn new(daemon: &Daemon, socket: &Path, pairs: u16) -> Plugged {
        let features = bit::VERSION_1 | bit::MRG_RXBUF | bit::EVENT_IDX | bit::MQ;
        let config = FrontEndConfig {
            features,
            required: features,
            queue_pairs: pairs,
            mtu: None,
            protocol: FrontEndConfig::usual_protocol(),
        };
        let mut front = FrontEnd::negotiate(UnixStream::connect(socket).unwrap(), &config).unwrap();
        let mut guest = Guest::new(4 << 20, 1).unwrap();
        front.share(&guest).unwrap();
        let mut drivers = Vec::new();
        for pair in 0..pairs {
            let mut driver: Driver<SplitDriver> = front
                .driver(&mut guest, pair, (256, 256), 0)
                .unwrap_or_else(|error| panic!("{error}; the log ends: {:#?}", end_of_log(daemon)));
            for _ in 0..256 {
                let addr = guest.alloc(2048, 64).unwrap();
                driver.rx.ring.add(&[Piece { addr, len: 2048 }], Direction::In).unwrap();
            }
            driver.rx.publish();
            drivers.push(driver);
        }
        Plugged { front, guest, drivers }
    }

    /// Broadcasts from all queues, and waits until the daemon has taken it.
    fn shout(&mut self, source: u8) {
        let mut frame = vec![0; self.front.header_len()];
        frame.extend([0xff; 6]);
        frame.extend([0x52, 0x54, 0, 0, 2, source, 0x88, 0xb5]);
        frame.resize(1500, 0);
        for driver in &mut self.drivers {
            let addr = self.guest.alloc(2048, 64).unwrap();
            self.guest.memory().write(addr, &frame).unwrap();
            for _ in 0..64 {
                driver
                    .tx
                    .ring
                    .add(&[Piece { addr, len: frame.len() as u32 }], Direction::Out)
                    .unwrap();
            }
            driver.tx.publish();
            let mut left = 64;
            while left > 0 {
                left -= driver.tx.ring.collect(&mut [Used::default(); 64]).unwrap();
                std::thread::yield_now();
            }
        }
    }
}

/// The resources that a process holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    /// KiB of memory that is not shared with anybody: not that of guests.
    own: u64,
    /// The part of it that is resident of the command's own file: twice as much here as in a
    /// program that is optimized.
    code: u64,
    /// Without the kernel's threads for io_uring, which come and go.
    threads: u64,
    descriptors: u64,
    mappings: u64,
}

impl Holdings {
    fn of(daemon: &Daemon) -> Holdings {
        let proc = format!("/proc/{}", daemon.id());
        let status = fs::read_to_string(format!("{proc}/status")).unwrap();
        let field = |name: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let tasks = fs::read_dir(format!("{proc}/task")).unwrap().flatten();
        let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm"));
        // A thread that has just ended has no name.
        let own = |task: &fs::DirEntry| name(task).is_ok_and(|name| !name.starts_with("iou-"));
        Holdings {
            own: field("RssAnon:") + field("RssFile:"),
            code: field("RssFile:"),
            threads: tasks.filter(|task| own(task)).count() as u64,
            descriptors: fs::read_dir(format!("{proc}/fd")).unwrap().count() as u64,
            mappings: fs::read_to_string(format!("{proc}/maps")).unwrap().lines().count() as u64,
        }
    }
}

fn daemon(workers: usize, ports: usize, queues: usize) -> Daemon {
    let config = |dir: &Path| {
        let mut text = format!("[workers]\ncount = {workers}\n");
        for port in 0..ports {
            let socket = dir.join(format!("p{port}.sock"));
            write!(
                text,
                "[[port]]\nname = \"p{port}\"\nkind = \"vhost-user\"\nsocket = {socket:?}\nqueues = {queues}\n"
            )
            .unwrap();
        }
        text
    };
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap()
}

/// With as many workers as there can be, too, and all of them in use.
#[test]
#[ignore = "slow"]
fn forty_ports_of_four_queues_take_less_than_30_mb() {
    for workers in [1, 4, 16] {
        let daemon = daemon(workers, 40, 4);
        let mut guests: Vec<Plugged> = (0..40)
            .map(|port| Plugged::new(&daemon, &daemon.dir().join(format!("p{port}.sock")), 4))
            .collect();
        for _ in 0..4 {
            for (port, guest) in guests.iter_mut().enumerate() {
                guest.shout(port as u8);
            }
        }
        let stats = daemon.stats().unwrap();
        assert_eq!(stats.ports.len(), 40);
        let holdings = Holdings::of(&daemon);
        eprintln!("{workers} workers: {holdings:?}");
        assert!(holdings.own - holdings.code < 30_000, "{workers} workers: {holdings:?}");
    }
}

/// How many times ports and front-ends come and go.
const ROUNDS: usize = 10_000;

/// What a daemon holds, time and again while much comes and goes.
#[derive(Debug)]
struct Growth(Vec<Holdings>);

impl Growth {
    /// How many parts a test has after its first one, in which caches fill.
    const PARTS: usize = 4;

    /// Notes what `daemon` holds at the end of each part.
    fn note(&mut self, round: usize, daemon: &Daemon) {
        if round.is_multiple_of(ROUNDS / (Growth::PARTS + 1)) {
            self.0.push(Holdings::of(daemon));
            eprintln!("{round}: {:?}", self.0.last());
        }
    }

    /// The daemon holds no more than it did.
    ///
    /// A leak is there in each part of the test. An allocator that takes another arena, or whose
    /// heap has holes, grows in some.
    #[track_caller]
    fn check(&self) {
        assert_eq!(self.0.len(), Growth::PARTS + 1);
        let grown = |field: fn(&Holdings) -> u64| {
            let parts =
                self.0.windows(2).map(|pair| field(&pair[1]).saturating_sub(field(&pair[0])));
            parts.min().unwrap()
        };
        // Of 64 bytes a time, more would be left in each part of two thousand.
        assert!(grown(|held| held.own) < 120, "{self:#?}");
        assert_eq!(grown(|held| held.threads), 0, "{self:#?}");
        assert_eq!(grown(|held| held.descriptors), 0, "{self:#?}");
        assert_eq!(grown(|held| held.mappings), 0, "{self:#?}");
    }
}

#[test]
#[ignore = "slow"]
fn ports_that_come_and_go_ten_thousand_times_leave_nothing_behind() {
    let daemon = daemon(2, 2, 2);
    let mut stays = Plugged::new(&daemon, &daemon.dir().join("p0.sock"), 2);
    let mut growth = Growth(Vec::new());
    for round in 1..=ROUNDS {
        let name = format!("r{}", round % 7);
        let socket = daemon.dir().join(&name);
        let port = serde_json::json!({ "name": name, "kind": "vhost-user", "socket": socket, "queues": 4 });
        let port = port.as_object().cloned().unwrap();
        done(&daemon, &Request::PortAdd { port });
        // Not every port meets a guest, and not every guest leaves before the port goes.
        let mut guest = (round % 20 == 0).then(|| Plugged::new(&daemon, &socket, 4));
        if let Some(guest) = &mut guest {
            guest.shout(7);
        }
        guest.take_if(|_| round % 40 == 0);
        done(&daemon, &Request::PortRemove { name });
        growth.note(round, &daemon);
    }
    stays.shout(1);
    growth.check();
}

/// Disks whose front-ends come and go in turn: the next one of the same disk is served after a
/// pause.
const DISKS: usize = 64;

/// A front-end of a disk that sends a flush on each of two queues, and waits for both if `waits`.
fn flush(socket: &Path, guest: &mut Guest, waits: bool) {
    let features = disk_bit::VERSION_1 | disk_bit::FLUSH | disk_bit::MQ;
    let protocol = FrontEndConfig::usual_protocol();
    let config =
        FrontEndConfig { features, required: features, queue_pairs: 2, mtu: None, protocol };
    let mut front = FrontEnd::negotiate(UnixStream::connect(socket).unwrap(), &config).unwrap();
    front.share(guest).unwrap();
    for index in 0..2 {
        let mut vring: Vring<SplitDriver> = Vring::new(guest, index, 16, features, 0).unwrap();
        front.start(&vring, vring.config().start).unwrap();
        let at = guest.alloc(64, 64).unwrap();
        guest.memory().write(at, &[4, 0, 0, 0]).unwrap();
        let (header, status) = (Piece { addr: at, len: 16 }, Piece { addr: at + 32, len: 1 });
        vring.ring.add_request(&[header], &[status]).unwrap();
        vring.publish();
        while waits && vring.ring.collect(&mut [Used::default(); 16]).unwrap() == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
#[ignore = "slow"]
fn front_ends_of_a_disk_that_come_and_go_ten_thousand_times_leave_nothing_behind() {
    let config = |dir: &Path| {
        let mut text = "[workers]\ncount = 2\n".to_owned();
        for disk in 0..DISKS {
            let socket = dir.join(format!("{disk}.sock"));
            let image = dir.join(format!("{disk}.raw"));
            fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
            write!(
                text,
                "[[disk]]\nname = \"{disk}\"\nkind = \"vhost-user\"\nsocket = {socket:?}\n\
                 image = {image:?}\n"
            )
            .unwrap();
        }
        text
    };
    let daemon = Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap();
    let mut growth = Growth(Vec::new());
    let guest = || Guest::new(1 << 20, 1).unwrap();
    for round in 1..=ROUNDS {
        let socket = daemon.dir().join(format!("{}.sock", round % DISKS));
        match round / DISKS % 4 {
            // Says nothing.
            0 => drop(UnixStream::connect(&socket).unwrap()),
            other => flush(&socket, &mut guest(), other != 1),
        }
        growth.note(round, &daemon);
    }
    for disk in daemon.stats().unwrap().disks {
        assert_eq!((disk.violations, disk.total.failed()), (0, 0), "{disk:#?}");
        flush(&daemon.dir().join(format!("{}.sock", disk.name)), &mut guest(), true);
    }
    growth.check();
}
