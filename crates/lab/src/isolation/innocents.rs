//! Two guests that do nothing wrong: one sends frames to the other, and each frame is timed.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ring::driver::Piece;
use serde::Serialize;
use vhost_user_driver::DriverError;

use super::neighbour::{self, ETHERTYPE};
use super::station::{Station, StationSpec, VNET};

/// Bytes of a frame, Ethernet header included.
const LEN: usize = 1514;

/// Offset in a frame of the time at which it was due, in nanoseconds from the start of a run.
const STAMP: usize = 16;

/// Frames that are sent or received at a time.
const BURST: usize = 32;

/// Longest delay that is recorded, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// Longest time for which frames may still be under way when no more are sent.
const DRAIN: Duration = Duration::from_millis(100);

/// Names of the ports that the daemon should have for the two guests.
pub const PORTS: [&str; 2] = ["innocent-a", "innocent-b"];

/// Numbers of the two guests, from which their addresses are derived.
pub const NUMBERS: [u8; 2] = [1, 2];

/// The frames of one run, by outcome.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Figures {
    /// Frames that were due.
    pub due: u64,
    /// Frames that arrived.
    pub arrived: u64,
    /// Frames that arrived in a second.
    pub rate: f64,
    /// Microseconds from when a frame was due until it was seen: the median.
    pub p50: f64,
    /// The same for the slowest frame of the fastest 99 %.
    pub p99: f64,
}

/// The two guests.
pub struct Innocents {
    sender: Station,
    receiver: Station,
    /// Number of the guest that gets every second frame.
    third: Option<u8>,
    start: Instant,
    times: Histogram<u64>,
    arrived: u64,
    sent: u64,
}

impl Innocents {
    /// Connects both, and makes them known to the switch.
    ///
    /// Every second frame goes to guest number `third`, if there is one.
    ///
    /// # Errors
    /// When the daemon refuses something.
    pub fn connect(
        sockets: [&std::path::Path; 2],
        third: Option<u8>,
    ) -> Result<Innocents, DriverError> {
        let [mut sender, mut receiver] = [
            Station::connect(sockets[0], &StationSpec::default())?,
            Station::connect(sockets[1], &StationSpec::default())?,
        ];
        for (station, number) in [(&mut sender, NUMBERS[0]), (&mut receiver, NUMBERS[1])] {
            neighbour::announce(station, number)?;
            station.post(0, usize::MAX);
        }
        let frame = neighbour::frame(NUMBERS[1], NUMBERS[0], LEN);
        sender.fill(&frame);
        Ok(Innocents {
            sender,
            receiver,
            third,
            start: Instant::now(),
            times: Histogram::new_with_bounds(1, LONGEST, 3)
                .unwrap_or_else(|e| panic!("bounds of a histogram: {e}")),
            arrived: 0,
            sent: 0,
        })
    }

    /// Sends `rate` frames a second for `time`, in an open loop: a frame that finds no room is sent
    /// later, and its delay counts from the time when it was due. Without a rate, sends as many as
    /// the ring takes.
    ///
    /// # Errors
    /// When the daemon breaks the protocol.
    pub fn run(&mut self, rate: Option<u64>, time: Duration) -> Result<Figures, DriverError> {
        self.receive()?;
        self.start = Instant::now();
        self.times.reset();
        (self.arrived, self.sent) = (0, 0);
        let mut due = 0;
        loop {
            let elapsed = self.start.elapsed();
            if elapsed >= time {
                break;
            }
            due = rate.map_or(u64::MAX, |rate| {
                (elapsed.as_nanos() * u128::from(rate) / 1_000_000_000) as u64
            });
            self.send(rate, due)?;
            self.receive()?;
        }
        let arrived = self.arrived;
        let last = Instant::now();
        while last.elapsed() < DRAIN {
            self.receive()?;
        }
        let due = if rate.is_some() { due } else { self.sent };
        let at = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        Ok(Figures {
            due: if self.third.is_some() { due.div_ceil(2) } else { due },
            // Frames of a run without a rate that are still under way at its end are not counted.
            arrived: if rate.is_some() { self.arrived } else { arrived },
            rate: arrived as f64 / time.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
        })
    }

    /// Sends frames until `due` have been sent, the ring is full, or a burst is complete.
    fn send(&mut self, rate: Option<u64>, due: u64) -> Result<(), DriverError> {
        self.sender.reclaim(0)?;
        let mut added = 0;
        while self.sent < due && added < BURST {
            let Some(addr) = self.sender.buffer(0) else { break };
            let when = match rate {
                Some(rate) => self.sent * 1_000_000_000 / rate,
                None => self.start.elapsed().as_nanos() as u64,
            };
            let third = self.third.filter(|_| !self.sent.is_multiple_of(2));
            let to = neighbour::address(third.unwrap_or(NUMBERS[1]));
            self.sender.write(addr + VNET as u64, &to);
            self.sender.write(addr + (VNET + STAMP) as u64, &when.to_le_bytes());
            let piece = Piece { addr, len: (VNET + LEN) as u32 };
            if !self.sender.send(0, addr, &[piece]) {
                break;
            }
            self.sent += 1;
            added += 1;
        }
        if added > 0 {
            self.sender.publish(0);
        }
        Ok(())
    }

    /// Takes the frames that arrived, and posts their buffers again.
    fn receive(&mut self) -> Result<(), DriverError> {
        let (start, times, arrived) = (self.start, &mut self.times, &mut self.arrived);
        let sender = neighbour::address(NUMBERS[0]);
        let count = self.receiver.receive(0, |guest, addr, len| {
            let mut bytes = [0; VNET + STAMP + 8];
            if (len as usize) < bytes.len() || guest.memory().read(addr, &mut bytes).is_err() {
                return;
            }
            let (frame, stamp) = (&bytes[VNET..VNET + STAMP], &bytes[VNET + STAMP..]);
            if frame[6..12] != sender || frame[12..14] != ETHERTYPE {
                return;
            }
            let due = stamp.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
            let now = start.elapsed().as_nanos() as u64;
            times.saturating_record(now.saturating_sub(due));
            *arrived += 1;
        })?;
        // Broadcast frames of any sender are also taken, because they would fill the ring
        // otherwise.
        let _ = self.sender.receive(0, |_, _, _| ())?;
        self.sender.post(0, BURST);
        if count > 0 {
            self.receiver.post(0, usize::MAX);
        }
        Ok(())
    }
}
