//! A network device of the host, by which frames leave: a TAP, whose other end a back-end reads.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::bind;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with};

use super::Error;
use super::endpoint::Sender;
use super::packet::{Tag, announcement};
use super::time::Clock;

/// The device, and what it sends.
pub struct Device {
    name: String,
    /// A packet socket: what is sent there leaves by the device.
    socket: OwnedFd,
    /// The number of the sender.
    number: u16,
    sender: Sender,
    /// Most frames at a time.
    burst: u64,
    /// The flow of the next frame.
    flow: u32,
    /// Room for a frame of any shape.
    frame: Vec<u8>,
}

impl Device {
    /// Opens the device `name` of this network namespace. Frames are at most `largest` bytes long.
    ///
    /// # Errors
    /// When there is no such device, or this process may not send by it.
    pub(super) fn open(
        name: &str,
        (number, sender): (u16, Sender),
        burst: u16,
        largest: u32,
    ) -> Result<Device, Error> {
        let failed = |error| Error::Device { name: name.into(), error };
        let frame = vec![0; largest as usize];
        let socket = packet_socket(name).map_err(failed)?;
        Ok(Device {
            name: name.into(),
            socket,
            number,
            sender,
            burst: burst.into(),
            flow: 0,
            frame,
        })
    }

    /// Sends a gratuitous ARP.
    ///
    /// # Errors
    /// When the device is gone.
    pub(super) fn announce(&self) -> Result<(), Error> {
        send_now(&self.socket, &announcement(self.number)).map(drop).map_err(|e| self.failed(e))
    }

    /// What it sends.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Sends a burst, as far as pace and socket allow; returns how many frames. A TAP whose reader
    /// is slow drops frames, and says nothing.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn transmit(&mut self, clock: Clock) -> Result<usize, Error> {
        let now = clock.now();
        let budget = self.sender.pace.budget(now, &self.sender.counters).min(self.burst);
        let mut sent = 0;
        while sent < budget && self.send_next(now).map_err(|error| self.failed(error))? {
            sent += 1;
        }
        self.sender.pace.spend(sent);
        Ok(sent as usize)
    }

    /// Sends the next frame; false: the socket has no room.
    fn send_next(&mut self, time: u64) -> io::Result<bool> {
        let (flow, flows) = (self.flow, self.sender.flows.len() as u32);
        let shape = self.sender.shapes.of(flow);
        let place = self.sender.flows.get_mut(flow as usize);
        let (Some(seq), Some(frame)) = (place, self.frame.get_mut(..shape.len() as usize)) else {
            return Ok(false);
        };
        shape.write(Tag { flow, seq: *seq, time }, frame);
        if !send_now(&self.socket, frame)? {
            return Ok(false);
        }
        *seq = seq.wrapping_add(1);
        self.sender.counters.add_sent(flow);
        self.flow = (flow + 1) % flows;
        Ok(true)
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::Device { name: self.name.clone(), error }
    }
}

/// A socket that only sends, bound to a device.
fn packet_socket(name: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    let address = getifaddrs()?
        .filter(|interface| interface.interface_name == name)
        .find_map(|interface| interface.address?.as_link_addr().copied());
    let address = address.ok_or(io::ErrorKind::NotFound)?;
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

/// Sends a frame; false: there is no room at present.
fn send_now(socket: &OwnedFd, frame: &[u8]) -> io::Result<bool> {
    match send(socket, frame, SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::NOBUFS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
