//! What the kernel allocates for requests of a disk is charged to the disk.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use control::api::{DiskReport, Reply, Request};
use lab::daemon::Daemon;
use ring::driver::{DriverRing, Piece, Used};
use ring::split::driver::SplitDriver;
use vhost_user::blk::feature::bit;
use vhost_user_driver::{FrontEnd, FrontEndConfig, Guest, Vring};

/// Bytes of each read, and of the image.
const READ: u32 = 64 << 10;
/// Bytes that are read in all, each into memory that nobody has touched.
const BYTES: u64 = 32 << 20;

const WATCHDOG: Duration = Duration::from_secs(60);

fn disk(daemon: &Daemon) -> DiskReport {
    match daemon.client().ask(&Request::DiskShow { name: "disk".into() }).unwrap() {
        Reply::Disk(disk) => *disk,
        other => panic!("{other:?}"),
    }
}

/// One queue of the disk, and the memory of its guest.
struct Queue {
    /// Ends the connection when it is dropped.
    _front: FrontEnd,
    guest: Guest,
    vring: Vring<SplitDriver>,
}

impl Queue {
    /// A queue of a guest with so much memory.
    fn start(daemon: &Daemon, bytes: u64) -> Queue {
        let features = bit::VERSION_1 | bit::FLUSH;
        let protocol = FrontEndConfig::usual_protocol();
        let config =
            FrontEndConfig { features, required: features, queue_pairs: 1, mtu: None, protocol };
        let stream = UnixStream::connect(daemon.dir().join("disk.sock")).unwrap();
        let mut front = FrontEnd::negotiate(stream, &config).unwrap();
        let mut guest = Guest::new(bytes + (1 << 20), 1).unwrap();
        front.share(&guest).unwrap();
        let vring = Vring::<SplitDriver>::new(&mut guest, 0, 64, front.features(), 0).unwrap();
        front.start(&vring, vring.config().start).unwrap();
        Queue { _front: front, guest, vring }
    }

    /// Makes a request, and waits for its answer. False: the daemon has hung up.
    fn ask(&mut self, daemon: &Daemon, readable: Piece, writable: [Piece; 2], ends: u64) -> bool {
        let until = Instant::now() + WATCHDOG;
        self.vring.ring.add_request(&[readable], &writable).unwrap();
        self.vring.publish();
        while self.vring.ring.collect(&mut [Used::default()]).unwrap() == 0 {
            assert!(Instant::now() < until, "{}", daemon.log());
            if disk(daemon).violations > ends {
                return false;
            }
        }
        true
    }
}

/// Reads into new memory until all of it is used, or the daemon has hung up. Returns that memory.
fn read(daemon: &Daemon, violations: u64) -> Guest {
    let mut queue = Queue::start(daemon, BYTES);
    let fixed = queue.guest.alloc(64, 64).unwrap();
    queue.guest.memory().write(fixed, &[0; 16]).unwrap();
    for _ in 0..BYTES / u64::from(READ) {
        let at = queue.guest.alloc(READ.into(), 4096).unwrap();
        let writable = [Piece { addr: at, len: READ }, Piece { addr: fixed + 32, len: 1 }];
        if !queue.ask(daemon, Piece { addr: fixed, len: 16 }, writable, violations) {
            break;
        }
    }
    queue.guest
}

/// Asks for the serial number in new memory, until all of that is used or the daemon has hung up.
/// The worker itself writes the answers.
fn identify(daemon: &Daemon, bytes: u64) {
    const GET_ID: u8 = 8;
    let mut queue = Queue::start(daemon, bytes);
    let header = queue.guest.alloc(64, 64).unwrap();
    queue.guest.memory().write(header, &[GET_ID, 0, 0, 0]).unwrap();
    for _ in 0..bytes / (2 * 4096) {
        let at = queue.guest.alloc(2 * 4096, 4096).unwrap();
        let writable = [Piece { addr: at, len: 20 }, Piece { addr: at + 4096, len: 1 }];
        if !queue.ask(daemon, Piece { addr: header, len: 16 }, writable, 0) {
            return;
        }
    }
}

/// A daemon with a disk whose image is `image`, which is made, and whose `memory` is as given.
fn daemon(image: &Path, memory: &str) -> Daemon {
    File::create(image).unwrap().set_len(READ.into()).unwrap();
    let config = |dir: &Path| {
        format!(
            "[workers]\ncount = 1\n[[disk]]\nname = \"disk\"\nkind = \"vhost-user\"\n\
             socket = \"{}\"\nimage = \"{}\"\nmemory = \"{memory}\"\n",
            dir.join("disk.sock").display(),
            image.display()
        )
    };
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap()
}

#[test]
fn a_front_end_whose_memory_its_disk_uses_up_is_stopped_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(&folder.path().join("disk.raw"), "4MiB");
    // Each connection begins at zero, since the former memory is gone, and ends in the same way.
    for violations in 0..2 {
        read(&daemon, violations);
        let until = Instant::now() + WATCHDOG;
        while disk(&daemon).violations == violations {
            assert!(Instant::now() < until, "{:#?}", disk(&daemon));
        }
        let disk = disk(&daemon);
        assert!(disk.reason.as_deref().is_some_and(|why| why.contains("memory limit")), "{disk:?}");
        let memory = disk.memory.unwrap();
        assert_eq!(memory.limit_bytes, 4 << 20);
        assert!((4 << 20..8 << 20).contains(&memory.allocated_bytes), "{memory:?}");
        assert!(disk.total.read_bytes < (violations + 1) * BYTES, "{disk:?}");
    }
    let set = serde_json::json!({ "memory": null });
    let set = set.as_object().unwrap().clone();
    daemon.client().ask(&Request::DiskSet { name: "disk".into(), set }).unwrap();
    let before = disk(&daemon).total.read_bytes;
    read(&daemon, 2);
    let after = disk(&daemon);
    let memory = after.memory.unwrap();
    assert_eq!(after.violations, 2);
    assert!(memory.limit_bytes > BYTES, "the default: {memory:?}");
    assert_eq!(after.total.read_bytes - before, BYTES);
}

#[test]
fn a_front_end_that_keeps_its_memory_is_stopped_with_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(&folder.path().join("disk.raw"), "48MiB");
    let kept = read(&daemon, 0);
    assert_eq!(disk(&daemon).total.read_bytes, BYTES);
    let another = read(&daemon, 0);
    let until = Instant::now() + WATCHDOG;
    while disk(&daemon).violations == 0 {
        assert!(Instant::now() < until, "{:#?}", disk(&daemon));
    }
    let stopped = disk(&daemon);
    assert!(stopped.reason.as_deref().is_some_and(|why| why.contains("memory limit")));
    assert!(stopped.total.read_bytes < 2 * BYTES, "{stopped:?}");
    drop((kept, another));
    read(&daemon, 1);
    let after = disk(&daemon);
    assert_eq!((after.violations, after.total.read_bytes - stopped.total.read_bytes), (1, BYTES));
}

/// The kernel takes no part in these requests.
#[test]
fn a_front_end_whose_memory_the_worker_uses_up_is_stopped_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(&folder.path().join("disk.raw"), "4MiB");
    identify(&daemon, 256 << 20);
    let disk = disk(&daemon);
    assert_eq!(disk.violations, 1, "{disk:?}");
    assert!(disk.reason.as_deref().is_some_and(|why| why.contains("memory limit")), "{disk:?}");
    assert!(disk.total.page_faults > 0, "{disk:?}");
}
