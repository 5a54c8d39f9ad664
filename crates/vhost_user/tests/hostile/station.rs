//! Well-behaved guests, and the traffic between two of them that nothing may disturb.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ring::driver::{Direction, DriverRing, Piece, Used};
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use vhost_user::net::feature::bit;
use vhost_user_driver::{Driver, FrontEnd, FrontEndConfig, Guest};

/// Bytes of a buffer.
const BUFFER: u64 = 2048;

/// Buffers on each Rx ring: far more than all frames that the hostile guest may have flooded at one
/// time.
const BUFFERS: u16 = 512;

/// Frames under way in each direction of each queue pair.
const WINDOW: u64 = 8;

/// Longest frame that is sent.
const LONGEST: usize = 1514;

const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// One queue pair, and where its buffers are.
struct QueuePair<R> {
    driver: Driver<R>,
    /// Address of the buffer that a chain stands for, by the chain's id.
    rx: Vec<u64>,
    tx: Vec<u64>,
    free: Vec<u64>,
}

/// A guest that does everything right.
pub struct Station<R> {
    front: FrontEnd,
    guest: Guest,
    queue_pairs: Vec<QueuePair<R>>,
    mac: [u8; 6],
}

impl<R: DriverRing> Station<R> {
    /// Connects to the port at `path`, and starts so many queue pairs.
    pub fn connect(path: &Path, mac: u8, pairs: u16, features: u64) -> Self {
        let features = features | bit::VERSION_1 | bit::MRG_RXBUF | bit::EVENT_IDX;
        let config = FrontEndConfig {
            features,
            required: features,
            queue_pairs: pairs,
            mtu: None,
            protocol: FrontEndConfig::usual_protocol(),
        };
        let stream = UnixStream::connect(path).unwrap();
        let mut front = FrontEnd::negotiate(stream, &config).unwrap();
        let mut guest = Guest::new(4 << 20, 2).unwrap();
        front.share(&guest).unwrap();
        let queue_pairs =
            (0..pairs).map(|pair| QueuePair::start(&mut front, &mut guest, pair)).collect();
        Station { front, guest, queue_pairs, mac: address(mac) }
    }

    /// Sends one frame of `len` bytes: `stream` and `number` say what it is, the rest follows from
    /// them. False: no room.
    pub fn send(&mut self, pair: usize, to: [u8; 6], stream: u8, number: u64, len: usize) -> bool {
        let offload = vec![0; self.front.header_len()];
        self.send_with(pair, &offload, &frame(to, self.mac, stream, number, len))
    }

    /// Broadcasts seven TCP segments of 256 bytes as one frame.
    pub fn send_big(&mut self) -> bool {
        let mut big =
            [&[0xff; 6][..], &self.mac, &[8, 0, 0x45, 0, 7, 40, 0, 1, 0, 0, 64, 6, 0, 0]].concat();
        big.extend([
            10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0,
            0, 0,
        ]);
        big.resize(54 + 7 * 256, 0x55);
        self.send_with(0, &[1, 1, 54, 0, 0, 1, 34, 0, 16, 0, 0, 0], &big)
    }

    fn send_with(&mut self, pair: usize, offload: &[u8], frame: &[u8]) -> bool {
        let Some(pair) = self.queue_pairs.get_mut(pair) else { return false };
        pair.reap();
        let Some(at) = pair.free.pop() else { return false };
        let bytes = [offload, frame].concat();
        self.guest.memory().write(at, &bytes).unwrap();
        let piece = Piece { addr: at, len: bytes.len() as u32 };
        let id = pair.driver.tx.ring.add(&[piece], Direction::Out).unwrap();
        pair.tx[usize::from(id)] = at;
        pair.driver.tx.publish();
        true
    }

    /// Takes what was received, and gives the buffers back. True when there was something.
    pub fn receive(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        let vnet = self.front.header_len();
        let mut any = false;
        for pair in &mut self.queue_pairs {
            let mut used = [Used::default(); 64];
            let count = pair.driver.rx.ring.collect(&mut used).unwrap();
            for used in &used[..count] {
                let at = pair.rx[usize::from(used.id)];
                let mut bytes = vec![0; used.len as usize];
                self.guest.memory().read(at, &mut bytes).unwrap();
                each(&bytes[vnet..]);
                pair.post(at);
            }
            if count > 0 {
                pair.driver.rx.publish();
                any = true;
            }
        }
        any
    }

    /// Sends a broadcast, and waits until `other` has it.
    pub fn reaches(&mut self, other: &mut Station<impl DriverRing>, stream: u8) {
        let sent = frame([0xff; 6], self.mac, stream, 7, 99);
        assert!(self.send(0, [0xff; 6], stream, 7, 99));
        super::eventually("a broadcast arrives", || {
            let mut found = false;
            other.receive(|frame| found |= frame == sent);
            self.receive(|_| ());
            found
        });
    }
}

impl<R: DriverRing> QueuePair<R> {
    fn start(front: &mut FrontEnd, guest: &mut Guest, pair: u16) -> Self {
        let driver: Driver<R> = front.driver(guest, pair, (BUFFERS, BUFFERS), 0).unwrap();
        let ids = vec![0; usize::from(BUFFERS)];
        let mut pair = QueuePair { driver, rx: ids.clone(), tx: ids, free: vec![] };
        for _ in 0..BUFFERS {
            let at = guest.alloc(BUFFER, 64).unwrap();
            pair.post(at);
        }
        pair.driver.rx.publish();
        pair.free = (0..2 * WINDOW).map(|_| guest.alloc(BUFFER, 64).unwrap()).collect();
        pair
    }

    fn post(&mut self, at: u64) {
        let id = self
            .driver
            .rx
            .ring
            .add(&[Piece { addr: at, len: BUFFER as u32 }], Direction::In)
            .unwrap();
        self.rx[usize::from(id)] = at;
    }

    fn reap(&mut self) {
        let mut used = [Used::default(); 2 * WINDOW as usize];
        let count = self.driver.tx.ring.collect(&mut used).unwrap();
        self.free.extend(used[..count].iter().map(|used| self.tx[usize::from(used.id)]));
    }
}

/// The address of guest `number`.
pub fn address(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 1, number]
}

fn frame(to: [u8; 6], from: [u8; 6], stream: u8, number: u64, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &ETHERTYPE, &[stream], &number.to_le_bytes()].concat();
    let fill = |at: usize| (number as usize).wrapping_mul(31).wrapping_add(at * 7) as u8 ^ stream;
    frame.extend((frame.len()..len).map(fill));
    frame
}

/// Two guests that send each other numbered frames, closed loop, both ways over two queue pairs,
/// until stopped. Each frame is held against what it should be, and must be the next one.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    frames: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    /// Between the ports at `a` and `b`, whose addresses are locked to 1 and 2.
    pub fn start(a: &Path, b: &Path) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let frames = Arc::new(AtomicU64::new(0));
        let mut pair = Pair {
            a: Station::connect(a, 1, 2, 0),
            b: Station::connect(b, 2, 2, bit::RING_PACKED),
            sent: [[0; 2]; 2],
            got: [[0; 2]; 2],
            frames: Arc::clone(&frames),
        };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || pair.run(&stopped));
        Traffic { stop, frames, thread: Some(thread) }
    }

    /// Waits until some more frames have made it.
    pub fn goes_on(&self) {
        let mark = self.frames.load(Ordering::Relaxed) + 40;
        super::eventually("traffic of others goes on", || {
            assert!(
                self.thread.as_ref().is_some_and(|thread| !thread.is_finished()),
                "traffic of others broke"
            );
            self.frames.load(Ordering::Relaxed) >= mark
        });
    }

    /// Stops, when all that was sent has arrived; says how many frames that were.
    pub fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.frames.load(Ordering::Relaxed)
    }
}

struct Pair {
    a: Station<SplitDriver>,
    b: Station<PackedDriver>,
    /// By direction and queue pair.
    sent: [[u64; 2]; 2],
    got: [[u64; 2]; 2],
    frames: Arc<AtomicU64>,
}

impl Pair {
    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.send();
            if !self.receive() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        super::eventually("the last frames arrive", || {
            self.receive();
            self.got == self.sent
        });
    }

    fn send(&mut self) {
        for pair in 0..2 {
            for direction in 0..2 {
                let (sent, got) = (&mut self.sent[direction][pair], self.got[direction][pair]);
                while *sent - got < WINDOW {
                    let (stream, len) = (stream(direction, pair), length(*sent));
                    let gone = match direction {
                        0 => self.a.send(pair, address(2), stream, *sent, len),
                        _ => self.b.send(pair, address(1), stream, *sent, len),
                    };
                    if !gone {
                        break;
                    }
                    *sent += 1;
                }
            }
        }
    }

    fn receive(&mut self) -> bool {
        let (got, frames) = (&mut self.got, &self.frames);
        let mut check = |direction: usize, bytes: &[u8]| {
            let to = 2 - direction as u8;
            // Whatever the hostile guest floods, it cannot say that it comes from one of these two.
            if bytes.len() < 23 || bytes[6..12] != address(3 - to) {
                return;
            }
            let pair = usize::from(bytes[14] & 1);
            let number = got[direction][pair];
            let expected = frame(
                address(to),
                address(3 - to),
                stream(direction, pair),
                number,
                length(number),
            );
            assert_eq!(bytes, expected, "frame {number} to guest {to}, queue pair {pair}");
            got[direction][pair] += 1;
            frames.fetch_add(1, Ordering::Relaxed);
        };
        self.b.receive(|bytes| check(0, bytes)) | self.a.receive(|bytes| check(1, bytes))
    }
}

fn stream(direction: usize, pair: usize) -> u8 {
    (0x10 + 2 * direction + pair) as u8
}

fn length(number: u64) -> usize {
    60 + (number as usize).wrapping_mul(97) % (LONGEST - 60)
}
