//! Two guests that keep to the protocol, and must be served whatever others do.

use std::path::Path;
use std::time::{Duration, Instant};

use ring::driver::{Direction, DriverRing, Piece, Used};
use ring::split::driver::SplitDriver;
use vhost_user::net::feature::bit;
use vhost_user_driver::{Driver, FrontEnd, FrontEndConfig, Guest};

use super::stubborn;

/// Bytes of a buffer.
const BUFFER: u64 = 2048;

/// Buffers on each Rx ring.
const BUFFERS: u16 = 256;

/// How long a frame may take before it counts as lost. Other guests may fill all rings meanwhile.
const RETRY: Duration = Duration::from_millis(200);

/// How long it may take until a frame arrives.
const LIMIT: Duration = Duration::from_secs(10);

/// Both guests.
pub struct Pair {
    stations: [Station; 2],
    number: u64,
}

struct Station {
    front: FrontEnd,
    guest: Guest,
    driver: Driver<SplitDriver>,
    /// Address of the receive buffer that a chain stands for.
    rx: Vec<u64>,
    /// Address of the one frame that is sent at a time.
    tx: u64,
    mac: [u8; 6],
}

impl Pair {
    /// Connects both to their ports.
    pub fn connect(first: &Path, second: &Path) -> Pair {
        Pair { stations: [Station::connect(first, 1), Station::connect(second, 2)], number: 0 }
    }

    /// Sends a frame in each direction, and waits until both have arrived. Every other frame is a
    /// broadcast, which reaches all guests.
    pub fn exchange(&mut self) {
        self.number += 1;
        for from in 0..2 {
            let [other, own] = [1 - from, from].map(|n| self.stations[n].mac);
            let to = if self.number.is_multiple_of(2) { other } else { [0xff; 6] };
            let number = self.number.to_le_bytes();
            let frame = [&to[..], &own, &[0x88, 0xb5, from as u8], &number, &[0; 80]].concat();
            let (begin, mut next) = (Instant::now(), Instant::now());
            let mut arrived = false;
            while !arrived {
                assert!(begin.elapsed() < LIMIT, "an honest guest is not served");
                if Instant::now() >= next {
                    self.stations[from].send(&frame);
                    next += RETRY;
                }
                self.stations[1 - from].receive(|bytes| arrived |= bytes == frame);
                self.stations[from].receive(|_| ());
                std::thread::yield_now();
            }
        }
    }
}

impl Station {
    fn connect(path: &Path, mac: u8) -> Station {
        let features = bit::VERSION_1 | bit::MRG_RXBUF | bit::EVENT_IDX;
        let config = FrontEndConfig {
            features,
            required: features,
            queue_pairs: 1,
            mtu: None,
            protocol: FrontEndConfig::usual_protocol(),
        };
        let stream = stubborn::connect(path).expect("the port listens");
        let mut front = FrontEnd::negotiate(stream, &config).expect("a connection");
        let mut guest = Guest::new(2 << 20, 2).expect("memory");
        front.share(&guest).expect("a memory table");
        let driver = front.driver(&mut guest, 0, (BUFFERS, 16), 0).expect("rings");
        let tx = guest.alloc(BUFFER, 64).expect("memory");
        let rx = vec![0; usize::from(BUFFERS)];
        let mut station = Station { front, guest, driver, rx, tx, mac: [0x52, 0x54, 0, 0, 1, mac] };
        for _ in 0..BUFFERS {
            let at = station.guest.alloc(BUFFER, 64).expect("memory");
            station.post(at);
        }
        station.driver.rx.publish();
        station
    }

    fn post(&mut self, addr: u64) {
        let piece = Piece { addr, len: BUFFER as u32 };
        let id = self.driver.rx.ring.add(&[piece], Direction::In).expect("room");
        self.rx[usize::from(id)] = addr;
    }

    /// Sends a frame. While the ring is full, earlier attempts to send the same frame are in it.
    fn send(&mut self, frame: &[u8]) {
        let mut used = [Used::default(); 16];
        self.driver.tx.ring.collect(&mut used).expect("a sound ring");
        let bytes = [&vec![0; self.front.header_len()], frame].concat();
        self.guest.memory().write(self.tx, &bytes).expect("within memory");
        let piece = Piece { addr: self.tx, len: bytes.len() as u32 };
        if self.driver.tx.ring.add(&[piece], Direction::Out).is_some() {
            self.driver.tx.publish();
        }
    }

    fn receive(&mut self, mut each: impl FnMut(&[u8])) {
        let mut used = [Used::default(); 64];
        let count = self.driver.rx.ring.collect(&mut used).expect("a sound ring");
        for used in &used[..count] {
            let at = self.rx[usize::from(used.id)];
            let mut bytes = vec![0; used.len as usize];
            self.guest.memory().read(at, &mut bytes).expect("within memory");
            each(bytes.get(self.front.header_len()..).unwrap_or_default());
            self.post(at);
        }
        if count > 0 {
            self.driver.rx.publish();
        }
    }
}
