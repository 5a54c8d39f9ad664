//! A guest with a disk of a daemon, which makes one request after the other. The front-end is that
//! of crate `vhost`.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ring::driver::{DriverRing, Piece, Used};
use ring::split::driver::SplitDriver;
use vhost_user::blk::feature::bit;
use vhost_user_driver::{FrontEnd, FrontEndConfig, Guest, Vring};

/// Status of a request (virtio 1.2, 5.2.6).
pub const OK: u8 = 0;
pub const IOERR: u8 = 1;

/// Bytes of the longest request.
const LONGEST: u64 = 64 << 10;

const WATCHDOG: Duration = Duration::from_secs(60);

/// A guest that is connected. The write cache is on.
pub struct DiskFront {
    _front: FrontEnd,
    guest: Guest,
    vring: Vring<SplitDriver>,
    /// Header, then the status 32 bytes behind.
    fixed: u64,
    data: u64,
}

impl DiskFront {
    pub fn connect(socket: &Path) -> DiskFront {
        let features = bit::VERSION_1 | bit::FLUSH | bit::DISCARD;
        let protocol = FrontEndConfig::usual_protocol();
        let required = bit::VERSION_1 | bit::FLUSH;
        let config = FrontEndConfig { features, required, queue_pairs: 1, mtu: None, protocol };
        let stream = UnixStream::connect(socket).unwrap();
        let mut front = FrontEnd::negotiate(stream, &config).unwrap();
        let mut guest = Guest::new(1 << 20, 1).unwrap();
        front.share(&guest).unwrap();
        let vring = Vring::new(&mut guest, 0, 16, front.features(), 0).unwrap();
        front.start(&vring, vring.config().start).unwrap();
        let fixed = guest.alloc(64, 64).unwrap();
        let data = guest.alloc(LONGEST, 4096).unwrap();
        DiskFront { _front: front, guest, vring, fixed, data }
    }

    /// Makes a request of this type, with so many bytes of the buffer to be read by the device and
    /// to be written. Returns its status.
    fn ask(&mut self, kind: u32, sector: u64, out: usize, room: usize) -> u8 {
        let piece = |addr, len: usize| Piece { addr, len: len as u32 };
        let header = [u64::from(kind).to_le_bytes(), sector.to_le_bytes()].concat();
        self.guest.memory().write(self.fixed, &header).unwrap();
        self.guest.memory().write(self.fixed + 32, &[0xff]).unwrap();
        let header = Some(piece(self.fixed, 16));
        let readable = header.into_iter().chain((out > 0).then(|| piece(self.data, out)));
        let writable = (room > 0).then(|| piece(self.data, room));
        let writable = writable.into_iter().chain([piece(self.fixed + 32, 1)]);
        let (readable, writable): (Vec<_>, Vec<_>) = (readable.collect(), writable.collect());
        self.vring.ring.add_request(&readable, &writable).unwrap();
        self.vring.publish();
        let until = Instant::now() + WATCHDOG;
        while self.vring.ring.collect(&mut [Used::default()]).unwrap() == 0 {
            assert!(Instant::now() < until, "no answer to request {kind} of sector {sector}");
            std::thread::yield_now();
        }
        let mut status = [0xff];
        self.guest.memory().read(self.fixed + 32, &mut status).unwrap();
        status[0]
    }

    pub fn write(&mut self, sector: u64, bytes: &[u8]) -> u8 {
        self.guest.memory().write(self.data, bytes).unwrap();
        self.ask(1, sector, bytes.len(), 0)
    }

    pub fn read(&mut self, sector: u64, bytes: usize) -> (u8, Vec<u8>) {
        let status = self.ask(0, sector, 0, bytes);
        let mut read = vec![0; bytes];
        self.guest.memory().read(self.data, &mut read).unwrap();
        (status, read)
    }

    pub fn flush(&mut self) -> u8 {
        self.ask(4, 0, 0, 0)
    }

    pub fn discard(&mut self, sector: u64, sectors: u32) -> u8 {
        let range = [sector.to_le_bytes(), u64::from(sectors).to_le_bytes()].concat();
        self.guest.memory().write(self.data, &range).unwrap();
        self.ask(11, 0, range.len(), 0)
    }
}
