//! A daemon with a disk, and a front-end of it: that of crate `vhost`.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use control::api::{DiskReport, Reply, Request};
use lab::daemon::Daemon;
use ring::driver::{DriverRing, Piece, Used};
use ring::split::driver::SplitDriver;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user::blk::feature::bit;
use vhost_user_driver::{FrontEnd, FrontEndConfig, Guest, Vring};

pub const FEATURES: u64 = bit::VERSION_1 | bit::FLUSH;

/// Bytes of a guest's memory.
pub const MEMORY: u64 = 1 << 20;

const WATCHDOG: Duration = Duration::from_secs(60);

/// A daemon with one disk for each of these images, by their numbers.
pub fn daemon(images: &[&Path]) -> Daemon {
    let config = |dir: &Path| {
        let disk = |(number, image): (usize, &&Path)| {
            format!(
                "[[disk]]\nname = \"{number}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nimage = \"{}\"\n",
                socket(dir, number),
                image.display()
            )
        };
        images.iter().enumerate().map(disk).collect()
    };
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap()
}

fn socket(dir: &Path, number: usize) -> String {
    dir.join(format!("{number}.sock")).display().to_string()
}

pub fn disk(daemon: &Daemon, number: usize) -> DiskReport {
    match daemon.client().ask(&Request::DiskShow { name: number.to_string() }).unwrap() {
        Reply::Disk(disk) => *disk,
        other => panic!("{other:?}"),
    }
}

/// Waits until a disk is as it should be.
#[track_caller]
pub fn eventually(daemon: &Daemon, number: usize, what: impl Fn(&DiskReport) -> bool) {
    let until = Instant::now() + WATCHDOG;
    while !what(&disk(daemon, number)) {
        assert!(Instant::now() < until, "{:?}\n{}", disk(daemon, number), daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A front-end that is connected, and knows the disk.
pub fn connect(daemon: &Daemon, number: usize) -> FrontEnd {
    let protocol = FrontEndConfig::usual_protocol() | VhostUserProtocolFeatures::LOG_SHMFD;
    let config = FrontEndConfig {
        features: FEATURES,
        required: FEATURES,
        queue_pairs: 1,
        mtu: None,
        protocol,
    };
    let stream = UnixStream::connect(socket(daemon.dir(), number)).unwrap();
    FrontEnd::negotiate(stream, &config).unwrap()
}

/// A guest whose ring is started.
pub struct Running {
    pub front: FrontEnd,
    pub vring: Vring<SplitDriver>,
    guest: Guest,
    /// Header, data and status.
    buffers: u64,
}

impl Running {
    /// Starts the ring. `None`: the daemon has hung up.
    pub fn start(mut front: FrontEnd) -> Option<Running> {
        let mut guest = Guest::new(MEMORY, 1).unwrap();
        front.share(&guest).ok()?;
        let vring = Vring::<SplitDriver>::new(&mut guest, 0, 64, front.features(), 0).unwrap();
        front.start(&vring, vring.config().start).ok()?;
        let buffers = guest.alloc(1024, 512).unwrap();
        Some(Running { front, vring, guest, buffers })
    }

    /// Asks for the first sector.
    pub fn ask(&mut self) {
        let at = self.buffers;
        self.guest.memory().write(at + 512, &[0; 16]).unwrap();
        let header = [Piece { addr: at + 512, len: 16 }];
        let answer = [Piece { addr: at, len: 512 }, Piece { addr: at + 600, len: 1 }];
        self.vring.ring.add_request(&header, &answer).unwrap();
        self.vring.publish();
    }

    /// Takes answers that have come. The ring refuses one for a request that is not under way.
    pub fn collect(&mut self) -> usize {
        self.vring.ring.collect(&mut [Used::default(); 64]).unwrap()
    }

    /// Reads the first sector, and waits for the answer.
    #[track_caller]
    pub fn read(&mut self, daemon: &Daemon) {
        self.ask();
        let until = Instant::now() + WATCHDOG;
        while self.collect() == 0 {
            assert!(Instant::now() < until, "{}", daemon.log());
        }
    }
}
