//! A daemon that is killed under traffic, again and again: no descriptor of its guests is lost, and
//! none comes back twice. The front-end is that of crate `vhost`. One guest connects to the daemon,
//! and the daemon connects to the other.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::daemon::Daemon;
use ring::driver::{Direction, DriverRing, Piece, Used};
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost_user::net::feature::bit;
use vhost_user_driver::{Driver, FrontEnd, FrontEndConfig, Guest, Vring};

/// How often the daemon is killed in each test; the environment (`RINGMAIN_KILLS`) can say more.
const KILLS: u64 = 25;

/// Entries of each ring.
const SIZE: u16 = 64;

/// Ends a test that would hang.
const WATCHDOG: Duration = Duration::from_secs(120);

/// The front-end's treatment of ring positions.
#[derive(Clone, Copy, PartialEq)]
enum Positions {
    /// QEMU: the used index of split rings, the start of packed ones.
    Qemu,
    /// Cloud Hypervisor: the available index of split rings; in-flight records.
    Records,
}

/// The socket between a front-end and its back-ends.
enum Socket {
    /// The front-end connects.
    Connects(PathBuf),
    /// The daemon connects.
    Listens(UnixListener),
}

impl Socket {
    fn connection(&self) -> UnixStream {
        match self {
            Socket::Connects(path) => UnixStream::connect(path).unwrap(),
            Socket::Listens(listener) => listener.accept().unwrap().0,
        }
    }
}

/// A guest with one queue pair, which outlives its back-ends.
struct Plugged<R> {
    socket: Socket,
    front: FrontEnd,
    guest: Guest,
    driver: Driver<R>,
    features: u64,
    positions: Positions,
    records: Option<(VhostUserInflight, File)>,
    /// Pieces of a frame, and a receive buffer.
    frame: [Piece; 2],
    buffer: Piece,
    sent: u64,
    completed: u64,
    received: u64,
}

fn negotiate(socket: &Socket, features: u64, positions: Positions) -> FrontEnd {
    let mut protocol = FrontEndConfig::usual_protocol();
    if positions == Positions::Records {
        protocol |= VhostUserProtocolFeatures::INFLIGHT_SHMFD;
    }
    let config =
        FrontEndConfig { features, required: features, queue_pairs: 1, mtu: None, protocol };
    FrontEnd::negotiate(socket.connection(), &config).unwrap()
}

impl<R: DriverRing> Plugged<R> {
    fn new(socket: Socket, layout: u64, positions: Positions, mark: u8) -> Plugged<R> {
        let features = bit::VERSION_1 | bit::EVENT_IDX | bit::MRG_RXBUF | layout;
        let mut front = negotiate(&socket, features, positions);
        let mut guest = Guest::new(1 << 20, 1).unwrap();
        front.share(&guest).unwrap();
        let records = (positions == Positions::Records).then(|| {
            let wanted = VhostUserInflight::new(0, 0, 2, SIZE);
            front.messages().get_inflight_fd(&wanted).unwrap()
        });
        let driver: Driver<R> = front.driver(&mut guest, 0, (SIZE, SIZE), 0).unwrap();
        let header = guest.alloc(front.header_len() as u64, 64).unwrap();
        let body = guest.alloc(60, 64).unwrap();
        let bytes = [&[0xff; 6][..], &[0x52, 0x54, 0, 0, 3, mark], &[0x88, 0xb5]].concat();
        guest.memory().write(body, &bytes).unwrap();
        let frame =
            [Piece { addr: header, len: front.header_len() as u32 }, Piece { addr: body, len: 60 }];
        let buffer = Piece { addr: guest.alloc(2048, 64).unwrap(), len: 2048 };
        let (sent, completed, received) = (0, 0, 0);
        let mut plugged = Plugged {
            socket,
            front,
            guest,
            driver,
            features,
            positions,
            records,
            frame,
            buffer,
            sent,
            completed,
            received,
        };
        plugged.refill();
        plugged
    }

    /// Posts receive buffers of one or two descriptors until the ring is full.
    fn refill(&mut self) {
        let half = Piece { len: 1024, ..self.buffer };
        let rx = &mut self.driver.rx;
        while rx.ring.add(&[half, half], Direction::In).is_some() {
            if rx.ring.add(&[self.buffer], Direction::In).is_none() {
                break;
            }
        }
        rx.publish();
    }

    /// Takes back what the device gave back.
    fn collect(&mut self) {
        let used = &mut [Used::default(); SIZE as usize];
        self.completed += self.driver.tx.ring.collect(used).unwrap() as u64;
        let received = self.driver.rx.ring.collect(used).unwrap();
        if received > 0 {
            self.received += received as u64;
            self.refill();
        }
    }

    /// Sends up to `n` frames of one or two descriptors.
    fn send(&mut self, n: u64) {
        for i in 0..n {
            let whole = [Piece { addr: self.buffer.addr, len: 80 }];
            let pieces = if i % 3 == 0 { &whole[..] } else { &self.frame[..] };
            self.sent += u64::from(self.driver.tx.ring.add(pieces, Direction::Out).is_some());
        }
        self.driver.tx.publish();
        self.collect();
    }

    /// Connects to the next daemon.
    fn reconnect(&mut self) {
        self.front = negotiate(&self.socket, self.features, self.positions);
        self.front.share(&self.guest).unwrap();
        if let Some((inflight, file)) = &self.records {
            self.front.messages().set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
        }
        for vring in [&self.driver.rx, &self.driver.tx] {
            let base = self.base(vring);
            self.front.start(vring, base).unwrap();
        }
    }

    /// The position that the front-end names.
    fn base(&self, vring: &Vring<R>) -> u32 {
        let index = |area: u64| {
            let mut bytes = [0; 2];
            self.guest.memory().read(area + 2, &mut bytes).unwrap();
            u32::from(u16::from_le_bytes(bytes))
        };
        match self.positions {
            _ if self.features & bit::RING_PACKED != 0 => 0x8000_8000,
            Positions::Qemu => index(vring.config().device),
            Positions::Records => index(vring.config().driver),
        }
    }
}

fn killed_again_and_again<R: DriverRing>(layout: u64, positions: Positions) {
    let kills = std::env::var("RINGMAIN_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut sockets = None;
    let config = |dir: &Path| {
        let [a, b] = ["a.sock", "b.sock"].map(|name| dir.join(name));
        let port = |name: &str, socket: &Path, mode: &str| {
            format!(
                "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = {socket:?}\n\
                 mode = \"{mode}\"\n"
            )
        };
        let ports = port("a", &a, "server") + &port("b", &b, "client");
        let listener = UnixListener::bind(b).unwrap();
        sockets = Some([Socket::Connects(a), Socket::Listens(listener)]);
        format!("[workers]\ncount = 1\n{ports}")
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
    let mut daemon = Daemon::start(binary, config, None).unwrap();
    let [a, b] = sockets.unwrap();
    let mut guests =
        [(a, 1), (b, 2)].map(|(socket, mark)| Plugged::<R>::new(socket, layout, positions, mark));
    let mut outages = Vec::new();
    for kill in 0..kills {
        // Both ways, until both have got a ring of frames from this daemon, and then a few more.
        let enough = guests.each_ref().map(|guest| guest.received + 2 * u64::from(SIZE));
        exchange(&mut guests, enough, &daemon);
        guests.iter_mut().for_each(|guest| guest.send(1 + kill * 7 % 40));
        (0..kill * 300).for_each(|_| std::hint::spin_loop());
        let killed = Instant::now();
        daemon.kill_and_start().unwrap();
        guests.iter_mut().for_each(Plugged::reconnect);
        // Frames of the old daemon are among those that a guest has not looked at yet.
        guests.iter_mut().for_each(Plugged::collect);
        let next = guests.each_ref().map(|guest| guest.received + 1);
        exchange(&mut guests, next, &daemon);
        outages.push(killed.elapsed());
    }
    let until = Instant::now() + WATCHDOG;
    while guests.iter().any(|guest| guest.completed < guest.sent) {
        guests.iter_mut().for_each(Plugged::collect);
        assert!(Instant::now() < until, "frames do not come back:\n{}", daemon.log());
    }
    let stats = daemon.stats().unwrap();
    assert!(stats.ports.iter().all(|port| port.unclear_rings == 0), "{stats:#?}");
    outages.sort_unstable();
    println!(
        "{kills} kills: from the kill to the first frame at both guests {:?} in the median, {:?} at most",
        outages[outages.len() / 2],
        outages[outages.len() - 1]
    );
}

/// Has guests send until each has received so many frames in all.
fn exchange<R: DriverRing>(guests: &mut [Plugged<R>; 2], enough: [u64; 2], daemon: &Daemon) {
    let until = Instant::now() + WATCHDOG;
    while guests.iter().zip(enough).any(|(guest, enough)| guest.received < enough) {
        guests.iter_mut().for_each(|guest| guest.send(8));
        assert!(Instant::now() < until, "no frames:\n{}", daemon.log());
    }
}

#[test]
fn packed_rings_of_a_front_end_that_knows_no_positions() {
    killed_again_and_again::<PackedDriver>(bit::RING_PACKED, Positions::Qemu);
}

#[test]
fn split_rings_of_a_front_end_that_knows_used_indices() {
    killed_again_and_again::<SplitDriver>(0, Positions::Qemu);
}

#[test]
fn packed_rings_of_a_front_end_that_keeps_records() {
    killed_again_and_again::<PackedDriver>(bit::RING_PACKED, Positions::Records);
}

#[test]
fn split_rings_of_a_front_end_that_keeps_records() {
    killed_again_and_again::<SplitDriver>(0, Positions::Records);
}
