//! A guest whose front-end sends vhost-user messages as fast as the daemon takes them.

use std::time::Duration;

use vhost_user_driver::DriverError;

use super::neighbour::{Neighbour, Role, Sockets};
use super::station::{Station, StationSpec};

/// Messages between two pauses.
const BATCH: usize = 64;

/// A message that is sent again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A ring is disabled and enabled (`SET_VRING_ENABLE`).
    Enable,
    /// The same memory is shown again (`SET_MEM_TABLE`).
    Memory,
    /// Features that the daemon refuses, and requests that do not exist, each of them worth a line
    /// in the log.
    Mistakes,
}

/// A guest that sends messages.
pub struct Messages {
    station: Station,
    message: Message,
}

impl Messages {
    /// Connects to the neighbour's first port, on the second daemon if it is the fair neighbour.
    ///
    /// # Errors
    /// When the daemon refuses it.
    pub fn connect(
        sockets: &Sockets,
        role: Role,
        message: Message,
    ) -> Result<Messages, DriverError> {
        let station = Station::connect(&sockets.decoy(role, 0), &StationSpec::default())?;
        Ok(Messages { station, message })
    }

    fn send(&mut self) -> Result<(), DriverError> {
        /// `SET_FEATURES`, and a request that no version of the protocol has.
        const SET_FEATURES: u32 = 2;
        const UNKNOWN: u32 = 200;
        match self.message {
            Message::Enable => {
                self.station.front().enable(0, false)?;
                self.station.front().enable(0, true)
            }
            Message::Memory => self.station.share(),
            Message::Mistakes => {
                let front = self.station.front();
                front.send_raw(SET_FEATURES, 1, &u64::MAX.to_le_bytes(), &[])?;
                front.send_raw(UNKNOWN, 1, &[], &[])
            }
        }
    }
}

impl Neighbour for Messages {
    fn step(&mut self) -> Result<Duration, DriverError> {
        for _ in 0..BATCH {
            self.send()?;
        }
        Ok(Duration::from_micros(50))
    }
}

/// A guest whose transmit ring has no kick descriptor (vhost-user, `SET_VRING_KICK`, bit 8): the
/// daemon has to look for itself whether there is something to do.
pub struct Unkicked {
    _station: Station,
}

impl Unkicked {
    /// Connects to the neighbour's first port. The fair neighbour has a kick descriptor.
    ///
    /// # Errors
    /// When the daemon refuses it.
    pub fn connect(sockets: &Sockets, role: Role) -> Result<Unkicked, DriverError> {
        const SET_VRING_KICK: u32 = 12;
        const NO_DESCRIPTOR: u64 = 1 << 8;
        const TX: u64 = 1;
        let mut station = Station::connect(&sockets.port(0), &StationSpec::default())?;
        if role == Role::Hostile {
            let front = station.front();
            front.stop(TX as u16)?;
            front.send_raw(SET_VRING_KICK, 1, &(TX | NO_DESCRIPTOR).to_le_bytes(), &[])?;
            front.enable(TX as u16, true)?;
        }
        Ok(Unkicked { _station: station })
    }
}

impl Neighbour for Unkicked {
    fn step(&mut self) -> Result<Duration, DriverError> {
        Ok(Duration::from_millis(10))
    }
}
