//! A guest whose front-end sends vhost-user messages as fast as the daemon takes them.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use vhost_user::net::feature::bit;
use vhost_user_driver::{DriverError, FrontEnd, FrontEndConfig};

use super::neighbour::{Neighbour, Role, Sockets};
use super::station::{Station, StationSpec};

/// Messages between two pauses.
const BATCH: usize = 64;

/// A message that is sent again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A ring is disabled and enabled (`SET_VRING_ENABLE`).
    Enable,
    /// The same memory is announced again (`SET_MEM_TABLE`).
    Memory,
}

/// Guests that send messages.
pub struct Messages {
    stations: Vec<Station>,
    message: Message,
}

impl Messages {
    /// Connects to this many of the neighbour's ports, on the second daemon if it is the fair
    /// neighbour.
    ///
    /// # Errors
    /// When the daemon refuses it.
    pub fn connect(
        sockets: &Sockets,
        role: Role,
        message: Message,
        ports: usize,
    ) -> Result<Messages, DriverError> {
        let connect = |port| Station::connect(&sockets.decoy(role, port), &StationSpec::default());
        Ok(Messages { stations: (0..ports).map(connect).collect::<Result<_, _>>()?, message })
    }

    fn send(&mut self) -> Result<(), DriverError> {
        for station in &mut self.stations {
            match self.message {
                Message::Enable => {
                    station.front().enable(0, false)?;
                    station.front().enable(0, true)?;
                }
                Message::Memory => station.share()?,
            }
        }
        Ok(())
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

/// A front-end that starts no ring, and again and again chooses other features than before
/// (`SET_FEATURES`): each choice causes a line in the log.
pub struct Renegotiating {
    front: FrontEnd,
}

impl Renegotiating {
    /// Connects to the neighbour's first port, on the second daemon if it is the fair neighbour.
    ///
    /// # Errors
    /// When the daemon refuses it.
    pub fn connect(sockets: &Sockets, role: Role) -> Result<Renegotiating, DriverError> {
        let config = FrontEndConfig {
            features: bit::VERSION_1 | bit::CSUM,
            required: bit::VERSION_1,
            queue_pairs: 1,
            mtu: None,
            protocol: FrontEndConfig::usual_protocol(),
        };
        let stream = UnixStream::connect(sockets.decoy(role, 0))
            .map_err(|e| DriverError::Io("socket", e))?;
        Ok(Renegotiating { front: FrontEnd::negotiate(stream, &config)? })
    }
}

impl Neighbour for Renegotiating {
    fn step(&mut self) -> Result<Duration, DriverError> {
        const SET_FEATURES: u32 = 2;
        let features = self.front.features();
        for _ in 0..BATCH {
            for features in [features & !bit::CSUM, features] {
                self.front.send_raw(SET_FEATURES, 1, &features.to_le_bytes(), &[])?;
            }
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
