//! Hosts with a VXLAN device and a bridge of the kernel's. The guests are TAP devices.

use std::io;
use std::os::fd::OwnedFd;

use frame::Mac;
use hostlink::inside::Inside;

use super::frames::{NUMBERS, Traffic, VARYING};
use super::guests::{Guests, RING};
use super::point::OverlayPoint;
use super::traffic::{self, Carried, Payers};
use super::underlay::{ADDRESSES, Underlay, VNI, Wire};
use crate::bench::BenchError;
use crate::guest::Namespace;
use crate::isolation::neighbour;
use crate::isolation::station::VNET;

/// The TAP device of a host.
const TAP: &str = "guest";
/// Bytes of the longest frame with its header.
const LONGEST: usize = 1 << 16;
/// Frames that are taken at a time.
const BURST: usize = 64;

/// Two hosts.
pub(super) struct KernelHosts {
    guests: [OwnedFd; 2],
    _underlay: Underlay,
}

/// The guests of a run. They use as much memory, in the same order, as guests with rings: the
/// kernel's copies are as cold.
struct TapGuests<'a> {
    guests: &'a [OwnedFd; 2],
    /// The sender's buffers.
    frames: Vec<Vec<u8>>,
    /// The receiver's buffers, and where the next frame is put.
    ring: Vec<u8>,
    next: usize,
}

impl KernelHosts {
    /// Makes the hosts, and makes their guests known to the bridges.
    pub(super) fn start(wire: Wire) -> Result<KernelHosts, BenchError> {
        let underlay = Underlay::lay(wire)?;
        let [a, b] = &underlay.hosts;
        let guests = [guest(a, 0)?, guest(b, 1)?];
        for (guest, number) in guests.iter().zip(NUMBERS) {
            let announcement = neighbour::announcement(number);
            rustix::io::write(guest, &announcement).map_err(|error| failed(error.into()))?;
        }
        Ok(KernelHosts { guests, _underlay: underlay })
    }

    /// Carries the frames of a point. An error is one line.
    pub(super) fn carry(
        &self,
        overlay: &OverlayPoint,
        seconds: f64,
        cpu: usize,
    ) -> Result<Carried, String> {
        let mut guests = TapGuests {
            guests: &self.guests,
            frames: vec![overlay.traffic.frame(); overlay.traffic.window()],
            ring: vec![0; usize::from(RING) * overlay.traffic.rx_buffer()],
            next: 0,
        };
        traffic::carry(&mut guests, overlay.traffic, Payers::Generator, seconds, cpu)
    }
}

/// Makes a host's devices as an administrator does, and opens the TAP device of its guest.
fn guest(host: &Namespace, number: usize) -> Result<OwnedFd, BenchError> {
    let tap = Inside {
        name: TAP.into(),
        queues: 1,
        // The host's end has an address of its own.
        mac: Mac([0x52, 0x54, 0, 0, 8, number as u8]),
        mtu: None,
        longest: 65_536,
        address: None,
    };
    let open = || tap.open().map_err(io::Error::other);
    let queue = host.open(open).map_err(failed)?.pop();
    let queue = queue.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let [local, remote] = [ADDRESSES[number], ADDRESSES[1 - number]];
    host.ip(&format!(
        "link add br0 type bridge\n\
         link add vx0 type vxlan id {VNI} dstport 4789 local {local} remote {remote}\n\
         link set br0 addrgenmode none\n\
         link set vx0 addrgenmode none\n\
         link set {TAP} addrgenmode none\n\
         link set vx0 master br0\n\
         link set {TAP} master br0\n\
         link set vx0 up\n\
         link set br0 up"
    ))?;
    Ok(queue)
}

fn failed(source: io::Error) -> BenchError {
    BenchError::Start { what: "use a TAP device", source }
}

impl Guests for TapGuests<'_> {
    fn send(&mut self, traffic: Traffic, first: u64, count: usize) -> Result<usize, String> {
        for n in 0..count {
            let (bytes, len) = traffic.varying(first + n as u64);
            let at = (first + n as u64) as usize % self.frames.len();
            let frame = &mut self.frames[at];
            frame[VARYING..VARYING + len].copy_from_slice(&bytes[..len]);
            match rustix::io::write(&self.guests[0], &*frame) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(n),
                Err(error) => return Err(format!("cannot write to a TAP device: {error}")),
            }
        }
        Ok(count)
    }

    fn receive(&mut self, traffic: Traffic) -> Result<u64, String> {
        let receiver = neighbour::address(NUMBERS[1]);
        let mut payload = 0;
        for _ in 0..BURST {
            if self.ring.len() - self.next < LONGEST + VNET {
                self.next = 0;
            }
            let room = &mut self.ring[self.next..];
            match rustix::io::read(&self.guests[1], &mut *room) {
                Ok(len) => {
                    if room[VNET..VNET + receiver.len()] == receiver {
                        payload += len.saturating_sub(VNET + traffic.headers()) as u64;
                    }
                    self.next += len.next_multiple_of(traffic.rx_buffer());
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(format!("cannot read from a TAP device: {error}")),
            }
        }
        Ok(payload)
    }
}
