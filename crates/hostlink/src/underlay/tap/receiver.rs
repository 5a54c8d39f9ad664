//! Datagrams that the host routed to the TAP device.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use frame::vnet::tunnel::{self, Outstanding, TUNNEL_LEN};
use frame::vxlan::VXLAN_LEN;
use network::port::QueueError;
use overlay::Refusal;
use ring::region::{MapError, Memory};

use super::super::arrival::Arrival;
use super::super::datagram;
use crate::tun;

/// Bytes of a buffer: a header, and the longest frame, in whole pages.
const BUFFER: u64 = 17 * 4096;
const _: () = assert!(TUNNEL_LEN + 14 + u16::MAX as usize <= BUFFER as usize);
/// Bytes after which no more frames are read ahead. The copies to the guests follow soon, so the
/// frames should still be in the cache.
const AHEAD: usize = 256 << 10;

/// A queue, and buffers for its frames.
pub(in super::super) struct TapReceiver {
    fd: Arc<OwnedFd>,
    memory: Arc<Memory>,
    local: SocketAddr,
}

impl TapReceiver {
    /// How many buffers can be filled. One more is never filled.
    pub const BUFFERS: u16 = 64;

    /// The receiver of a queue. `local` is the VTEP's address and port.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn new(fd: Arc<OwnedFd>, local: SocketAddr) -> Result<TapReceiver, MapError> {
        let bytes = u64::from(Self::BUFFERS + 1) * BUFFER;
        Ok(TapReceiver { fd, memory: Arc::new(Memory::anonymous(bytes as usize)?), local })
    }

    /// The memory that the buffers are in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where a buffer begins in it.
    pub fn place(buffer: u16) -> u64 {
        u64::from(buffer) * BUFFER
    }

    /// The descriptor that signals frames.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads frames into buffers of `free`, the last ones first. What was read is appended to
    /// `arrivals`.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn receive(
        &mut self,
        free: &mut Vec<u16>,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), QueueError> {
        let mut bytes = 0;
        while bytes < AHEAD
            && let Some(&buffer) = free.last()
        {
            let (place, fd) = (Self::place(buffer), self.fd.as_fd());
            match self.memory.read_from_fd(fd, place, BUFFER as usize) {
                Ok(len) => {
                    bytes += len;
                    if !self.is_multicast(buffer) {
                        free.pop();
                        arrivals.push(self.arrival(buffer, len));
                    }
                }
                Err(error) if tun::is_gone(&error) => return Err(QueueError::Gone),
                // No frame is there, or the interface is down.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Whether the frame is for a group. The kernel sends such frames by itself, to join groups of
    /// IPv6. Those that it routes have the device's address.
    fn is_multicast(&self, buffer: u16) -> bool {
        let mut first = [0];
        let read = self.memory.read(Self::place(buffer) + TUNNEL_LEN as u64, &mut first);
        read.is_ok() && first[0] & 1 != 0
    }

    /// Reads the headers of a frame of `len` bytes, and of what is in front of it.
    fn arrival(&self, buffer: u16, len: usize) -> Arrival {
        self.datagrams(buffer, len).unwrap_or_else(|refusal| Arrival::refused(buffer, refusal))
    }

    fn datagrams(&self, buffer: u16, len: usize) -> Result<Arrival, Refusal> {
        let mut header = [0; TUNNEL_LEN];
        let frame_len = len.checked_sub(TUNNEL_LEN).ok_or(Refusal::NotVxlan)?;
        let place = Self::place(buffer) + TUNNEL_LEN as u64;
        let read = self.memory.read(Self::place(buffer), &mut header);
        read.map_err(|_| Refusal::Malformed)?;
        let mut head = [0; datagram::HEAD];
        let head = &mut head[..frame_len.min(datagram::HEAD)];
        self.memory.read(place, head).map_err(|_| Refusal::Malformed)?;
        let outer = datagram::outer_headers(head, frame_len, self.local)?;
        let (udp_at, inner_at) = (datagram::udp_at(&outer) as u16, outer.inner_at as u16);
        let outstanding = tunnel::decode(&header, udp_at, inner_at).ok_or(Refusal::Malformed)?;
        let payload = (outer.inner_len + VXLAN_LEN) as u32;
        let (segment, offload) = match outstanding {
            Outstanding::Nothing { verified } => {
                if !verified {
                    datagram::verify_at(&self.memory, place, &outer)?;
                }
                (payload, None)
            }
            Outstanding::Datagrams(len) => (len.into(), None),
            Outstanding::Inner(header) => (payload, Some(header)),
        };
        Ok(Arrival {
            buffer,
            at: (TUNNEL_LEN + outer.inner_at - VXLAN_LEN) as u32,
            len: payload,
            segment,
            source: Ok(outer.source),
            header: None,
            offload,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use frame::vxlan::outer::{Covered, Ends, Template};
    use frame::{Sum, Vni};

    use super::super::MAC;
    use super::*;

    /// A receiver, and the host that routes frames to it.
    fn receiver() -> (TapReceiver, UnixDatagram) {
        let (device, host) = UnixDatagram::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        let local = "10.9.1.1:4789".parse().unwrap();
        (TapReceiver::new(Arc::new(device.into()), local).unwrap(), host)
    }

    /// A frame with an inner one of `len` bytes behind outer headers to `destination`, and without
    /// anything outstanding.
    fn frame(destination: &str, len: usize) -> Vec<u8> {
        let source = "10.9.1.2".parse().unwrap();
        let ends = Ends::new(source, destination.parse().unwrap()).unwrap();
        let template =
            Template { link: (MAC, MAC), ends, port: 4789, ttl: 64, vni: Vni::new(7).unwrap() };
        let inner = vec![0x31; len];
        let outer =
            template.prefix().headers(50_000, len, Covered::Whole(Sum::of(&inner))).unwrap();
        [&[0; TUNNEL_LEN], outer.as_slice(), &inner].concat()
    }

    fn arrivals(receiver: &mut TapReceiver, free: &mut Vec<u16>) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        receiver.receive(free, &mut arrivals).unwrap();
        arrivals
    }

    #[test]
    fn only_intact_datagrams_for_the_vtep_are_accepted() {
        let (mut receiver, host) = receiver();
        let good = frame("10.9.1.1", 601);
        let mut source = |frame: &[u8]| {
            host.send(frame).unwrap();
            let mut free = vec![0];
            let arrivals = arrivals(&mut receiver, &mut free);
            assert!(free.is_empty() && arrivals.len() == 1);
            arrivals[0].source
        };
        let changed = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            frame
        };
        assert_eq!(source(&changed(0, 0)), Ok("10.9.1.2".parse().unwrap()));
        assert_eq!(source(&changed(300, 0)), Err(Refusal::Checksum));
        // A checksum that somebody has verified is not verified again.
        let last = good.len() - 1;
        let mut verified = good.clone();
        (verified[0], verified[last]) = (2, 0);
        assert_eq!(source(&changed(last, 0)), Err(Refusal::Checksum));
        // TCP, another port, a fragment, no VNI.
        assert_eq!(source(&changed(TUNNEL_LEN + 23, 6)), Err(Refusal::NotVxlan));
        assert_eq!(source(&changed(TUNNEL_LEN + 37, 0)), Err(Refusal::NotVxlan));
        assert!(source(&changed(TUNNEL_LEN + 20, 0x20)).is_err());
        assert_eq!(source(&changed(TUNNEL_LEN + 42, 0)), Err(Refusal::NoVni));
        // A claim of segmentation that is none of a tunnel's.
        assert_eq!(source(&changed(1, 1)), Err(Refusal::Malformed));
        assert_eq!(source(&verified), Ok("10.9.1.2".parse().unwrap()));
        assert_eq!(source(&frame("10.9.1.9", 100)), Err(Refusal::NotVxlan));
        assert_eq!(source(&good[..good.len() - 1]), Err(Refusal::Malformed));
        for len in 0..TUNNEL_LEN + 50 {
            assert!(source(&good[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn frames_of_the_kernels_own_are_ignored() {
        let (mut receiver, host) = receiver();
        let mut group = frame("10.9.1.1", 100);
        group[TUNNEL_LEN] = 0x33;
        host.send(&group).unwrap();
        host.send(&frame("10.9.1.1", 100)).unwrap();
        let mut free = vec![0, 1, 2];
        let arrivals = arrivals(&mut receiver, &mut free);
        assert_eq!((arrivals.len(), arrivals[0].buffer, free), (1, 2, vec![0, 1]));
    }

    #[test]
    fn datagrams_that_the_kernel_coalesced_have_one_length() {
        let (mut receiver, host) = receiver();
        let mut several = frame("10.9.1.1", 2500);
        // To be completed: the outer checksum. UDP segments of 1000 bytes.
        (several[0], several[1], several[6]) = (1, 5, 34);
        several[4..6].copy_from_slice(&1000u16.to_le_bytes());
        host.send(&several).unwrap();
        let arrival = arrivals(&mut receiver, &mut vec![0])[0];
        assert_eq!((arrival.at, arrival.len, arrival.segment), (24 + 42, 2508, 1000));
        assert_eq!(arrival.offload, None);
    }
}
