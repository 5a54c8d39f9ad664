//! Datagrams from a receive queue of a card.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use frame::vxlan::VXLAN_LEN;
use network::port::QueueError;
use overlay::Refusal;
use ring::region::Memory;
use ring::xdp::{Descriptor, PAGE};

use super::super::arrival::Arrival;
use super::super::datagram;

/// Most frames that are taken at a time.
const BURST: usize = 64;

/// A receive queue, and the pages that the kernel fills. A page that is neither free nor has a
/// frame is the kernel's.
pub(in super::super) struct CardReceiver {
    receiver: ring::xdp::Receiver,
    pages: Arc<Memory>,
    local: SocketAddr,
    /// Frames that were taken and not looked at yet.
    taken: Vec<Descriptor>,
    /// A copy of the frame that is looked at.
    frame: Box<[u8; PAGE as usize]>,
}

impl CardReceiver {
    /// How many pages can be filled.
    pub const BUFFERS: u16 = 512;

    /// The receiver of a socket with these pages. `local` is the VTEP's address and port.
    pub fn new(
        receiver: ring::xdp::Receiver,
        pages: Arc<Memory>,
        local: SocketAddr,
    ) -> CardReceiver {
        let (taken, frame) = (Vec::with_capacity(BURST), Box::new([0; PAGE as usize]));
        CardReceiver { receiver, pages, local, taken, frame }
    }

    /// The memory that the pages are in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.pages
    }

    /// Where a page begins in it.
    pub fn place(buffer: u16) -> u64 {
        u64::from(buffer) * PAGE
    }

    /// The descriptor that signals frames.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.waker()
    }

    /// Gives the pages of `free` to the kernel, and appends what has come to `arrivals`.
    ///
    /// # Errors
    /// When a ring is not there.
    pub fn receive(
        &mut self,
        free: &mut Vec<u16>,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), QueueError> {
        while let Some(&buffer) = free.last()
            && self.receiver.fill.push(Self::place(buffer))?
        {
            free.pop();
        }
        self.receiver.publish()?;
        while self.taken.len() < BURST
            && let Some(frame) = self.receiver.frames.take()?
        {
            // The bytes come from the memory of all frames of a burst at once.
            self.pages.prefetch(frame.addr, frame.len as usize);
            self.taken.push(frame);
        }
        self.receiver.frames.release()?;
        for at in 0..self.taken.len() {
            let frame = self.taken[at];
            let buffer = (frame.addr / PAGE) as u16;
            let arrival = self.arrival(buffer, frame);
            arrivals.push(arrival.unwrap_or_else(|refusal| Arrival::refused(buffer, refusal)));
        }
        self.taken.clear();
        Ok(())
    }

    fn arrival(&mut self, buffer: u16, frame: Descriptor) -> Result<Arrival, Refusal> {
        let Descriptor { addr, len } = frame;
        let frame = self.frame.get_mut(..len as usize).ok_or(Refusal::Malformed)?;
        self.pages.read(addr, frame).map_err(|_| Refusal::Malformed)?;
        let outer = datagram::outer_headers(frame, frame.len(), self.local)?;
        datagram::verify(frame, &outer)?;
        let payload = (outer.inner_len + VXLAN_LEN) as u32;
        Ok(Arrival {
            buffer,
            at: (addr % PAGE) as u32 + (outer.inner_at - VXLAN_LEN) as u32,
            len: payload,
            segment: payload,
            source: Ok(outer.source),
            header: frame[..outer.inner_at].last_chunk().copied(),
            offload: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use frame::vxlan::outer::{Covered, Ends, Template};
    use frame::{Mac, Sum, Vni};
    use ring::xdp::{Feeder, HEADROOM, Socket, rings};

    use super::*;

    /// A receiver, and the card.
    fn receiver() -> (CardReceiver, Feeder) {
        let bytes = u64::from(CardReceiver::BUFFERS) * PAGE;
        let pages = Arc::new(Memory::anonymous(bytes as usize).unwrap());
        let (fill, frames) = rings(CardReceiver::BUFFERS.into()).unwrap();
        let feeder = Feeder::new(fill.clone(), frames.clone());
        let fd: OwnedFd = UnixDatagram::unbound().unwrap().into();
        let socket = Socket::stand_in(fd, Arc::clone(&pages));
        let receiver = ring::xdp::Receiver::over(fill, frames, socket);
        (CardReceiver::new(receiver, pages, "10.9.0.1:4789".parse().unwrap()), feeder)
    }

    fn frame(destination: &str, number: u8) -> Vec<u8> {
        let ends = Ends::new([10, 9, 0, 2].into(), destination.parse().unwrap()).unwrap();
        let link = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let template = Template { link, ends, port: 4789, ttl: 64, vni: Vni::new(7).unwrap() };
        let inner = [number; 101];
        let outer = template.prefix().headers(50_000, inner.len(), Covered::Whole(Sum::of(&inner)));
        [outer.unwrap().as_slice(), &inner].concat()
    }

    #[test]
    fn pages_go_round_and_only_datagrams_for_the_vtep_are_accepted() {
        let (mut receiver, mut feeder) = receiver();
        let mut free: Vec<u16> = (0..CardReceiver::BUFFERS).collect();
        // More frames than there are pages.
        for round in 0..3 * CardReceiver::BUFFERS {
            let mut arrivals = Vec::new();
            receiver.receive(&mut free, &mut arrivals).unwrap();
            assert!(arrivals.is_empty() && free.is_empty());
            let mut come = |frame: &[u8]| {
                let addr = feeder.page().unwrap().unwrap() + HEADROOM;
                receiver.pages.write(addr, frame).unwrap();
                let len = frame.len() as u32;
                assert!(feeder.publish(Descriptor { addr, len }).unwrap());
            };
            let mut wrong = frame("10.9.0.1", 1);
            wrong[100] ^= 1;
            come(&frame("10.9.0.1", round as u8));
            come(&frame("10.9.0.9", 1));
            come(&wrong);
            receiver.receive(&mut free, &mut arrivals).unwrap();
            let sources: Vec<_> = arrivals.iter().map(|arrival| arrival.source).collect();
            let good = Ok([10, 9, 0, 2].into());
            assert_eq!(sources, [good, Err(Refusal::NotVxlan), Err(Refusal::Checksum)]);
            let first = arrivals[0];
            let mut inner = [0; 101];
            let place = CardReceiver::place(first.buffer) + u64::from(first.at) + 8;
            receiver.pages.read(place, &mut inner).unwrap();
            assert_eq!((first.len, inner), (109, [round as u8; 101]));
            free.extend(arrivals.iter().map(|arrival| arrival.buffer));
        }
    }
}
