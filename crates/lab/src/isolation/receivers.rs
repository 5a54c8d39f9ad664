//! Guests that receive what the innocent sender also sends to them, in all the ways in which a
//! receiver can keep a sender waiting.

use std::time::{Duration, Instant};

use vhost_user_driver::DriverError;

use super::neighbour::{self, Neighbour, Sockets};
use super::station::{Station, StationSpec};

/// The number of the guest that receives.
pub const NUMBER: u8 = 10;

/// How a receiver posts its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// All of them, as soon as they are used.
    Promptly,
    /// This number of buffers after each pause. A receiver that is this slow is honest.
    Paced(usize, Duration),
    /// This number of buffers as soon as they are used, and then none for a pause.
    Bursts(usize, Duration),
    /// None. The ring is enabled and disabled after each pause.
    Toggled(Duration),
    /// None.
    Never,
}

/// A guest that receives.
pub struct Receiver {
    station: Station,
    posting: Posting,
    /// Buffers still to be posted before the next pause.
    left: usize,
    enabled: bool,
}

impl Receiver {
    /// Connects to the neighbour's first port.
    ///
    /// # Errors
    /// When the daemon refuses it.
    pub fn connect(sockets: &Sockets, posting: Posting) -> Result<Receiver, DriverError> {
        let spec = StationSpec { ring: 1024, ..StationSpec::default() };
        let mut station = Station::connect(&sockets.port(0), &spec)?;
        neighbour::announce(&mut station, NUMBER)?;
        let left = match posting {
            Posting::Bursts(count, _) => count,
            _ => 0,
        };
        Ok(Receiver { station, posting, left, enabled: true })
    }

    /// Posts as many as are left of a burst for as long as some are, within a time.
    fn burst(&mut self, count: usize, pause: Duration) -> Result<Duration, DriverError> {
        let start = Instant::now();
        while self.left > 0 && start.elapsed() < pause {
            self.station.receive(0, |_, _, _| ())?;
            self.left -= self.station.post(0, self.left);
            std::thread::sleep(Duration::from_micros(50));
        }
        self.left = count;
        Ok(pause)
    }
}

impl Neighbour for Receiver {
    fn step(&mut self) -> Result<Duration, DriverError> {
        match self.posting {
            Posting::Promptly => {
                self.station.receive(0, |_, _, _| ())?;
                self.station.post(0, usize::MAX);
                Ok(Duration::from_micros(50))
            }
            Posting::Paced(count, pause) => {
                self.station.receive(0, |_, _, _| ())?;
                self.station.post(0, count);
                Ok(pause)
            }
            Posting::Bursts(count, pause) => self.burst(count, pause),
            Posting::Toggled(pause) => {
                self.enabled = !self.enabled;
                self.station.front().enable(0, self.enabled)?;
                Ok(pause)
            }
            Posting::Never => Ok(Duration::from_millis(10)),
        }
    }
}
