//! A daemon that is killed while it writes, again and again: each request is answered once, and
//! nothing that an old daemon still had under way lands on newer data. The front-end is that of
//! crate `vhost`.
//!
//! Writes overlap in place and in time. Each sector of a write holds the number of the write. The
//! tests that are ignored kill a thousand daemons each (CONTRIBUTING.md).

#[path = "../../../storage/tests/stamps/mod.rs"]
mod stamps;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::daemon::Daemon;
use ring::driver::{DriverRing, Piece, Used};
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use stamps::{KILLS, LONGEST, MANY_KILLS, SECTOR, SECTORS, Stamps, kills};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost_user::blk::feature::bit;
use vhost_user_driver::{FrontEnd, FrontEndConfig, Guest, Vring};

/// Entries of each ring, and the requests in it at most: each takes three descriptors.
const SIZE: u16 = 64;
const MOST: usize = 16;
const QUEUES: usize = 2;

/// Daemons that are killed with one qcow2 image.
const KILLS_OF_AN_IMAGE: u64 = 5;

/// Ends a test that would hang.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A ring, its buffers, and what is under way on it.
struct Queue<R> {
    vring: Vring<R>,
    /// Guest addresses of buffers that are free: header, status and data of one request.
    free: Vec<u64>,
    /// By what the driver calls it: the buffers, and the number of the write.
    waiting: HashMap<u16, (u64, usize)>,
}

/// A guest with a disk, which outlives its back-ends.
struct Plugged<R> {
    front: FrontEnd,
    guest: Guest,
    queues: Vec<Queue<R>>,
    features: u64,
    records: (VhostUserInflight, File),
    stamps: Stamps,
}

/// Connects as soon as the disk is in service. A daemon that follows a killed one waits for the
/// requests of that, and tries again later if those take long.
fn connect(socket: &Path) -> UnixStream {
    let until = Instant::now() + WATCHDOG;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{}: {error}", socket.display()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn negotiate(socket: &Path, features: u64) -> FrontEnd {
    let protocol = FrontEndConfig::usual_protocol() | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
    let queue_pairs = QUEUES as u16;
    let config = FrontEndConfig { features, required: features, queue_pairs, mtu: None, protocol };
    FrontEnd::negotiate(connect(socket), &config).unwrap()
}

impl<R: DriverRing> Plugged<R> {
    fn new(socket: &Path, features: u64) -> Plugged<R> {
        let features = features | bit::VERSION_1 | bit::EVENT_IDX | bit::FLUSH | bit::MQ;
        let mut front = negotiate(socket, features);
        let mut guest = Guest::new(4 << 20, 2).unwrap();
        front.share(&guest).unwrap();
        let wanted = VhostUserInflight::new(0, 0, QUEUES as u16, SIZE);
        let records = front.messages().get_inflight_fd(&wanted).unwrap();
        // Indirect tables on the second queue only.
        let queues = (0..QUEUES as u16).map(|index| {
            let vring = Vring::new(&mut guest, index, SIZE, features, 4 * index).unwrap();
            front.start(&vring, vring.config().start).unwrap();
            let buffers = |_| guest.alloc(64 + LONGEST * SECTOR, 64).unwrap();
            let free = (0..MOST).map(buffers).collect();
            Queue { vring, free, waiting: HashMap::new() }
        });
        let queues = queues.collect();
        let stamps = Stamps::new(features);
        Plugged { front, guest, queues, features, records, stamps }
    }

    /// Sends a write, if there is room for it.
    fn send(&mut self, queue: usize) {
        let queue = &mut self.queues[queue];
        let Some(&buffers) = queue.free.last() else { return };
        let (sectors, data) = self.stamps.next();
        let header = [1u64.to_le_bytes(), sectors.start.to_le_bytes()].concat();
        let memory = self.guest.memory();
        memory.write(buffers, &header).unwrap();
        memory.write(buffers + 32, &[0xff]).unwrap();
        memory.write(buffers + 64, &data).unwrap();
        let piece = |addr, len| Piece { addr, len };
        let readable = [piece(buffers, 16), piece(buffers + 64, data.len() as u32)];
        let status = [piece(buffers + 32, 1)];
        let Some(id) = queue.vring.ring.add_request(&readable, &status) else { return };
        queue.free.pop();
        queue.waiting.insert(id, (buffers, self.stamps.sent(sectors)));
        queue.vring.publish();
    }

    /// Takes the answers that have come. The driver's half of the ring refuses one for a request
    /// that is not under way.
    fn collect(&mut self) {
        let used = &mut [Used::default(); SIZE as usize];
        for queue in &mut self.queues {
            let count = queue.vring.ring.collect(used).unwrap();
            for Used { id, .. } in &used[..count] {
                let (buffers, number) = queue.waiting.remove(id).expect("answered twice");
                let mut status = [0xff];
                self.guest.memory().read(buffers + 32, &mut status).unwrap();
                assert_eq!(status, [0], "write {number}");
                self.stamps.answered(number);
                queue.free.push(buffers);
            }
        }
    }

    fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    /// Connects to the next daemon, as QEMU would: with the used index of split rings, and the
    /// start of packed ones.
    fn reconnect(&mut self, socket: &Path) {
        self.front = negotiate(socket, self.features);
        self.front.share(&self.guest).unwrap();
        let (inflight, file) = &self.records;
        self.front.messages().set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
        for queue in &self.queues {
            let config = queue.vring.config();
            let mut index = [0; 2];
            self.guest.memory().read(config.device + 2, &mut index).unwrap();
            let packed = self.features & bit::RING_PACKED != 0;
            let base = if packed { config.start } else { u16::from_le_bytes(index).into() };
            self.front.start(&queue.vring, base).unwrap();
        }
    }
}

fn killed_again_and_again<R: DriverRing>(features: u64, direct: &str, kills: u64) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.raw");
    File::create(&image).unwrap().set_len(SECTORS * SECTOR).unwrap();
    let stamps = killed_with::<R>(&image, "raw", features, direct, (kills, 200));
    stamps.check(&image);
}

/// Runs `qemu-img` in a folder. Returns its exit code.
fn qemu_img(folder: &Path, arguments: &str) -> Option<i32> {
    let mut command = Command::new("qemu-img");
    let output = command.current_dir(folder).args(arguments.split(' ')).output();
    output.expect("qemu-img runs (package qemu-utils)").status.code()
}

/// qcow2 images over a backing file, whose clusters are allocated by the writes of the test: new
/// ones again and again, each for a few daemons that are killed soon.
fn killed_with_qcow2<R: DriverRing>(features: u64, cluster: u64, kills: u64) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    File::create(dir.join("base")).unwrap().set_len(SECTORS * SECTOR).unwrap();
    for _ in 0..kills.div_ceil(KILLS_OF_AN_IMAGE) {
        let create =
            format!("create -q -f qcow2 -o cluster_size={cluster} -b base -F raw disk.qcow2");
        assert_eq!(qemu_img(dir, &create), Some(0));
        let image = dir.join("disk.qcow2");
        let kills = (KILLS_OF_AN_IMAGE, 10);
        let stamps = killed_with::<R>(&image, "qcow2", features, "auto", kills);
        // 0: nothing is wrong; 3: clusters are lost, which a daemon that is killed had ready.
        let checked = qemu_img(dir, "check -q -f qcow2 disk.qcow2");
        assert!(matches!(checked, Some(0 | 3)), "{checked:?}");
        assert_eq!(qemu_img(dir, "convert -q -f qcow2 -O raw disk.qcow2 raw"), Some(0));
        stamps.check(&dir.join("raw"));
    }
}

/// Kills daemons that serve an image: so many, each after about so many events. Returns the writes,
/// all of which were answered.
fn killed_with<R: DriverRing>(
    image: &Path,
    format: &str,
    features: u64,
    direct: &str,
    (kills, events): (u64, u64),
) -> Stamps {
    let socket = |dir: &Path| -> PathBuf { dir.join("disk.sock") };
    let config = |dir: &Path| {
        format!(
            "[workers]\ncount = 2\n[[disk]]\nname = \"disk\"\nkind = \"vhost-user\"\n\
             socket = \"{}\"\nimage = \"{}\"\nformat = \"{format}\"\ndirect = \"{direct}\"\n",
            socket(dir).display(),
            image.display()
        )
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
    let mut daemon = Daemon::start(binary, config, None).unwrap();
    let socket = socket(daemon.dir());
    let mut plugged = Plugged::<R>::new(&socket, features);
    let mut unanswered = 0;
    for kill in 0..kills {
        let enough = plugged.stamps.events() + events + kill % (events / 4).max(1);
        let until = Instant::now() + WATCHDOG;
        while plugged.stamps.events() < enough {
            let queue = plugged.stamps.random.usize(..QUEUES);
            plugged.send(queue);
            if plugged.stamps.random.u64(..3) == 0 {
                plugged.collect();
            }
            assert!(Instant::now() < until, "no answers after kill {kill}:\n{}", daemon.log());
        }
        (0..plugged.stamps.random.u64(..5000)).for_each(|_| std::hint::spin_loop());
        daemon.kill_and_start().unwrap();
        plugged.collect();
        unanswered += plugged.waiting();
        plugged.reconnect(&socket);
    }
    let until = Instant::now() + WATCHDOG;
    while plugged.waiting() > 0 {
        plugged.collect();
        assert!(Instant::now() < until, "{} unanswered:\n{}", plugged.waiting(), daemon.log());
    }
    assert!(unanswered > 0 || events < 100, "no daemon was killed with requests under way");
    assert!(daemon.log().contains("disk=disk features="), "{}", daemon.log());
    let stats = daemon.stats().unwrap();
    let disk = &stats.disks[0];
    assert_eq!((disk.unclear_rings, disk.violations, disk.total.failed()), (0, 0, 0), "{disk:#?}");
    plugged.stamps
}

const SPLIT: u64 = bit::INDIRECT_DESC;
const PACKED: u64 = bit::RING_PACKED | bit::INDIRECT_DESC;

#[test]
fn split_rings_through_the_page_cache() {
    killed_again_and_again::<SplitDriver>(SPLIT, "off", kills(KILLS));
}

#[test]
fn packed_rings_through_the_page_cache() {
    killed_again_and_again::<PackedDriver>(PACKED, "off", kills(KILLS));
}

#[test]
fn split_rings_past_the_page_cache() {
    killed_again_and_again::<SplitDriver>(SPLIT, "auto", kills(KILLS));
}

#[test]
fn packed_rings_past_the_page_cache() {
    killed_again_and_again::<PackedDriver>(PACKED, "auto", kills(KILLS));
}

#[test]
fn qcow2_with_clusters_of_a_sector() {
    killed_with_qcow2::<SplitDriver>(SPLIT, 512, kills(KILLS));
}

#[test]
fn qcow2_with_clusters_of_a_page() {
    killed_with_qcow2::<PackedDriver>(PACKED, 4096, kills(KILLS));
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_kills_of_split_rings() {
    killed_again_and_again::<SplitDriver>(SPLIT, "auto", kills(MANY_KILLS));
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_kills_of_packed_rings() {
    killed_again_and_again::<PackedDriver>(PACKED, "auto", kills(MANY_KILLS));
}
