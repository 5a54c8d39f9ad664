use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use network::fabric::Workers;
use ring::driver::{Direction, DriverRing, Piece, Used};
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use tempfile::TempDir;

mod connections;
mod migration;
mod violations;

use super::*;
use vhost_user_driver::{Driver, FrontEnd, FrontEndConfig, Guest};

use crate::net::device::ActiveVrings;
use crate::net::feature::bit;
use crate::transport::status::State;

/// Ends a test that would hang. The value is not a measure of anything.
const WATCHDOG: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + WATCHDOG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Lab {
    fabric: Arc<Fabric>,
    dir: TempDir,
}

impl Lab {
    fn new() -> Lab {
        let workers = Workers { count: 2, ..Workers::default() };
        Lab {
            fabric: Arc::new(Fabric::start(&workers).unwrap()),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, name: &str, mode: Mode) -> Result<Port, StartError> {
        self.start_with(name, mode, None)
    }

    fn start_with(
        &self,
        name: &str,
        mode: Mode,
        coalescing: Option<CoalescingLimits>,
    ) -> Result<Port, StartError> {
        let mtu = Some(1500);
        let config = PortConfig { mode, mtu, coalescing, ..PortConfig::new(&self.path(name), 2) };
        Port::start(Arc::clone(&self.fabric), config)
    }

    fn device(&self, name: &str) -> Port {
        self.start(name, Mode::Server).unwrap()
    }

    fn connect(&self, name: &str) -> UnixStream {
        UnixStream::connect(self.path(name)).unwrap()
    }
}

/// A guest with one queue pair.
struct Plugged<R> {
    front: FrontEnd,
    guest: Guest,
    driver: Driver<R>,
}

const FEATURES: u64 = bit::VERSION_1 | bit::EVENT_IDX | bit::MRG_RXBUF;

impl<R: DriverRing> Plugged<R> {
    fn on(stream: UnixStream, features: u64) -> Plugged<R> {
        Self::with(
            stream,
            &FrontEndConfig {
                features,
                required: features,
                queue_pairs: 1,
                mtu: Some(1500),
                protocol: FrontEndConfig::usual_protocol(),
            },
        )
    }

    fn with(stream: UnixStream, config: &FrontEndConfig) -> Plugged<R> {
        let mut front = FrontEnd::negotiate(stream, config).unwrap();
        let mut guest = Guest::new(1 << 20, 2).unwrap();
        front.share(&guest).unwrap();
        let mut driver: Driver<R> = front.driver(&mut guest, 0, (64, 64), 0).unwrap();
        for _ in 0..16 {
            let addr = guest.alloc(2048, 64).unwrap();
            driver.rx.ring.add(&[Piece { addr, len: 2048 }], Direction::In).unwrap();
        }
        driver.rx.publish();
        Plugged { front, guest, driver }
    }

    /// Sends a broadcast frame whose last byte is `mark`.
    fn send(&mut self, mark: u8) {
        let header = self.front.header_len();
        let mut frame = vec![0; header + 60];
        frame[header..header + 6].fill(0xff);
        frame[header + 6..header + 12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, mark]);
        frame[header + 12..header + 14].copy_from_slice(&[0x88, 0xb5]);
        frame[header + 59] = mark;
        let addr = self.guest.alloc(2048, 64).unwrap();
        self.guest.memory().write(addr, &frame).unwrap();
        self.driver
            .tx
            .ring
            .add(&[Piece { addr, len: frame.len() as u32 }], Direction::Out)
            .unwrap();
        self.driver.tx.publish();
    }

    /// Frames received since the last call.
    fn received(&mut self) -> usize {
        self.driver.rx.ring.collect(&mut [Used::default(); 64]).unwrap()
    }

    fn reaches(&mut self, other: &mut Plugged<impl DriverRing>, mark: u8) {
        self.send(mark);
        eventually("a frame arrives", || other.received() == 1);
    }
}

fn active(status: &PortStatus) -> ActiveVrings {
    ActiveVrings::count(&status.active_vrings)
}

fn guest(lab: &Lab, name: &str) -> Plugged<SplitDriver> {
    Plugged::on(lab.connect(name), FEATURES)
}

#[test]
fn two_guests_talk_whatever_their_rings() {
    let lab = Lab::new();
    let (_a, _b) = (lab.device("a"), lab.device("b"));
    let mut modern = Plugged::<PackedDriver>::on(lab.connect("a"), FEATURES | bit::RING_PACKED);
    let mut oldest = Plugged::<SplitDriver>::on(lab.connect("b"), 0);
    assert_eq!((modern.front.header_len(), oldest.front.header_len()), (12, 10));
    modern.reaches(&mut oldest, 1);
    oldest.reaches(&mut modern, 2);
}

/// The first frame passes the driver's event index; later frames find no request for an interrupt.
#[test]
fn a_driver_that_sleeps_is_interrupted_in_the_end() {
    let lab = Lab::new();
    let _a = lab.device("a");
    let _b = lab
        .start_with(
            "b",
            Mode::Server,
            CoalescingLimits::new(Some(1000), CoalescingLimits::MAX_TIME),
        )
        .unwrap();
    let (mut a, mut b) = (guest(&lab, "a"), guest(&lab, "b"));
    for round in 0..5 {
        assert!(!b.driver.rx.ring.arm());
        (0..3).for_each(|n| a.send(round * 3 + n));
        let mut came = 0;
        while came < 3 {
            eventually("an interrupt", || b.driver.rx.acknowledge());
            came += b.received();
            b.driver.rx.ring.arm();
        }
    }
}

#[test]
fn rings_stop_and_go_on_while_the_connection_lasts() {
    let lab = Lab::new();
    let (_a, _b) = (lab.device("a"), lab.device("b"));
    let (mut a, mut b) = (guest(&lab, "a"), guest(&lab, "b"));
    a.reaches(&mut b, 1);
    // A frame's arrival does not imply its completion.
    eventually("completion", || a.driver.tx.ring.collect(&mut [Used::default(); 4]).unwrap() == 1);
    assert_eq!(a.front.stop(1).unwrap(), 1);
    a.send(2);
    a.front.start(&a.driver.tx, 1).unwrap();
    eventually("the frame that waited", || b.received() == 1);
    assert_eq!(b.front.stop(0).unwrap(), 2);
    b.front.start(&b.driver.rx, 2).unwrap();
    a.reaches(&mut b, 3);
}

#[test]
fn memory_changes_while_frames_flow() {
    let lab = Lab::new();
    let (_a, _b) = (lab.device("a"), lab.device("b"));
    let (mut a, mut b) = (guest(&lab, "a"), guest(&lab, "b"));
    for round in 0..10 {
        a.send(round);
        a.front.share(&a.guest).unwrap();
        // While the receiver's memory changes, nothing can be delivered.
        eventually("the frame of a sender whose memory changes", || b.received() == 1);
        b.front.share(&b.guest).unwrap();
    }
}

#[test]
fn a_disabled_transmitter_is_drained() {
    let lab = Lab::new();
    let (device, _b) = (lab.device("a"), lab.device("b"));
    let (mut a, mut b) = (guest(&lab, "a"), guest(&lab, "b"));
    a.front.enable(1, false).unwrap();
    a.send(1);
    let mut used = [Used::default(); 4];
    eventually("the frame is discarded", || a.driver.tx.ring.collect(&mut used).unwrap() == 1);
    let dropped =
        || lab.fabric.counters(device.port())[0].dropped(network::count::DropReason::TxDisabled);
    eventually("it is counted", || dropped() == 1);
    assert_eq!(b.received(), 0);
    a.front.enable(1, true).unwrap();
    a.reaches(&mut b, 2);
}

/// A worker that polled all the time would never sleep, and one that slept until a signal came
/// would sleep once.
#[test]
fn a_ring_without_kick_is_polled_between_sleeps() {
    let lab = Lab::new();
    let _ports = [lab.device("a"), lab.device("b")];
    let (mut a, mut b) = (guest(&lab, "a"), guest(&lab, "b"));
    const SET_VRING_KICK: u32 = 12;
    const TX_WITHOUT_DESCRIPTOR: u64 = 1 | 1 << 8;
    a.front.stop(1).unwrap();
    a.front.send_raw(SET_VRING_KICK, 1, &TX_WITHOUT_DESCRIPTOR.to_le_bytes(), &[]).unwrap();
    a.front.enable(1, true).unwrap();
    let sleeps = || {
        let workers = lab.fabric.worker_counters().iter();
        workers.map(|worker| worker.run.sleeps.get()).max().unwrap_or(0)
    };
    for mark in 0..3 {
        let before = sleeps();
        eventually("a worker sleeps again and again", || sleeps() > before + 100);
        a.reaches(&mut b, mark);
    }
}

/// Messages are sent until they are delayed. Some 4800 cost more than the half second of a worker's
/// time that may be used at once, and a slow machine earns some of it meanwhile.
#[test]
fn a_flood_of_messages_delays_its_own_port_only() {
    let lab = Lab::new();
    let [flooded, good, other] = ["flooded", "good", "other"].map(|name| lab.device(name));
    let hostile = guest(&lab, "flooded");
    const SET_VRING_ENABLE: u32 = 18;
    let sent = (0..1_000_000).find(|n| {
        let enable = [0u32.to_le_bytes(), (n % 2u32).to_le_bytes()].concat();
        hostile.front.send_raw(SET_VRING_ENABLE, 1, &enable, &[]).unwrap();
        flooded.status().control_delayed > 0
    });
    assert!(sent.is_some(), "no message was delayed");
    let (mut a, mut b) = (guest(&lab, "good"), guest(&lab, "other"));
    a.reaches(&mut b, 1);
    assert_eq!([good, other].map(|port| port.status().control_delayed), [0, 0]);
    assert_eq!(flooded.status().state, State::Connected);
    // A port that owes time ends at once all the same.
    flooded.stop();
}

#[test]
fn sixteen_queue_pairs_are_served() {
    let lab = Lab::new();
    let config = PortConfig::new(&lab.path("wide"), 16);
    let device = Port::start(Arc::clone(&lab.fabric), config).unwrap();
    let config = FrontEndConfig {
        features: FEATURES | bit::MQ,
        required: FEATURES | bit::MQ,
        queue_pairs: 16,
        mtu: None,
        protocol: FrontEndConfig::usual_protocol(),
    };
    let mut front = FrontEnd::negotiate(lab.connect("wide"), &config).unwrap();
    let mut guest = Guest::new(4 << 20, 1).unwrap();
    front.share(&guest).unwrap();
    let drivers: Vec<Driver<SplitDriver>> =
        (0..16).map(|pair| front.driver(&mut guest, pair, (64, 64), 0).unwrap()).collect();
    assert_eq!(active(&device.status()), ActiveVrings { tx: 16, rx: 16 });
    for ring in 0..32 {
        assert_eq!(front.stop(ring).unwrap(), 0);
    }
    assert_eq!(active(&device.status()), ActiveVrings::default());
    drop(drivers);
}

/// Another back-end marks only the first descriptor of a chain, and was killed.
#[test]
fn a_packed_ring_that_does_not_show_its_position_is_named() {
    let lab = Lab::new();
    let port = lab.device("a");
    let mut guest: Plugged<PackedDriver> =
        Plugged::on(lab.connect("a"), FEATURES | bit::RING_PACKED);
    assert_eq!(port.status().complaint(), None);
    guest.front.stop(0).unwrap();
    let config = *guest.driver.rx.config();
    // In turn used and available.
    for entry in 0..u64::from(config.size) {
        let flags = if entry % 2 == 0 { 0x8080u16 } else { 0x0080 };
        let at = config.desc + 16 * entry + 14;
        guest.guest.memory().write(at, &flags.to_le_bytes()).unwrap();
    }
    guest.front.start(&guest.driver.rx, 0x8000_8000).unwrap();
    let status = port.status();
    assert_eq!((status.unclear_vrings.as_slice(), status.unclear), (&[0][..], 1));
    assert!(status.complaint().unwrap().starts_with("ring 0: "), "{status:?}");
    // The driver starts anew.
    guest.front.stop(0).unwrap();
    guest.guest.memory().write(config.desc, &[0; 16 * 64]).unwrap();
    guest.front.start(&guest.driver.rx, 0x8000_8000).unwrap();
    assert_eq!((port.status().complaint(), port.status().unclear), (None, 1));
}
