//! Frames that a card sends from pages of its socket.

use std::ops::Range;
use std::sync::Arc;

use frame::Sum;
use frame::vxlan::outer::{Covered, OUTER_V6, Prefix};
use frame::vxlan::source_port;
use network::packet::Packet;
use network::port::QueueError;
use ring::region::Memory;
use ring::xdp::{Descriptor, PAGE};

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is sent by the next [`flush`](CardSender::flush).
    Taken,
    /// All pages are on their way.
    Full,
    /// It is longer than a page, or its bytes are gone.
    Refused,
}

/// A send queue, and the pages that frames are sent from. The pairs of all peers with the same
/// index share it; they are usually served by the same worker.
pub(in super::super) struct CardSender {
    sender: ring::xdp::Sender,
    pages: Arc<Memory>,
    free: Vec<u64>,
    /// A private copy of the inner frame, with room for outer headers in front of it: its bytes
    /// are summed and written, and a guest may change its own meanwhile.
    frame: Box<[u8; PAGE as usize]>,
}

impl CardSender {
    /// The sender of a socket with these pages, of which it uses those with the numbers `own`.
    pub fn new(sender: ring::xdp::Sender, pages: Arc<Memory>, own: Range<u32>) -> CardSender {
        let free = own.rev().map(|page| u64::from(page) * PAGE).collect();
        CardSender { sender, pages, free, frame: Box::new([0; PAGE as usize]) }
    }

    /// Adds a frame of the flow with this hash, behind outer headers of this tunnel.
    ///
    /// # Errors
    /// When a ring is not there.
    pub(super) fn add(
        &mut self,
        tunnel: &Prefix,
        hash: u32,
        packet: &Packet<'_>,
    ) -> Result<Sent, QueueError> {
        let len = packet.len() as usize;
        let inner = self.frame[OUTER_V6..].get_mut(..len);
        let Some(inner) = inner else { return Ok(Sent::Refused) };
        let (head, body) = inner.split_at_mut(packet.head.len().min(len));
        head.copy_from_slice(packet.head);
        if packet.body.read(body) != body.len() {
            return Ok(Sent::Refused);
        }
        let covered = Covered::Whole(Sum::of(inner));
        let Ok(outer) = tunnel.headers(source_port(hash), len, covered) else {
            return Ok(Sent::Refused);
        };
        let outer = outer.as_slice();
        if self.free.is_empty() {
            self.reclaim()?;
        }
        let Some(page) = self.free.pop() else { return Ok(Sent::Full) };
        let begin = OUTER_V6 - outer.len();
        self.frame[begin..OUTER_V6].copy_from_slice(outer);
        let frame = &self.frame[begin..OUTER_V6 + len];
        self.pages.write(page, frame)?;
        let frame = Descriptor { addr: page, len: frame.len() as u32 };
        if !self.sender.transmit.push(frame)? {
            self.free.push(page);
            return Ok(Sent::Full);
        }
        Ok(Sent::Taken)
    }

    /// Sends what was added. Returns whether there was anything.
    ///
    /// # Errors
    /// When a ring is not there.
    pub(super) fn flush(&mut self) -> Result<bool, QueueError> {
        let any = self.sender.transmit.has_unpublished();
        if any {
            self.reclaim()?;
        }
        Ok(any)
    }

    /// Sends what was added, and takes back the pages of frames that were sent. They are used again
    /// first, while they are in the cache.
    fn reclaim(&mut self) -> Result<(), QueueError> {
        self.sender.publish()?;
        while let Some(page) = self.sender.completed.take()? {
            self.free.push(page);
        }
        self.sender.completed.release()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use frame::vxlan::decapsulate;
    use frame::vxlan::outer::{Ends, Template};
    use frame::{Mac, Offload, Vni};
    use ring::gather::Gather;
    use ring::xdp::{Fill, Frames, Receiver, Sender, Socket, rings};

    use super::*;

    /// A sender with pages of its own behind the first four, and the card: what is to be sent, and
    /// what was sent.
    fn sender() -> (CardSender, Frames, Fill, Arc<Memory>) {
        let pages = Arc::new(Memory::anonymous(8 * PAGE as usize).unwrap());
        let (fill, frames) = rings(4).unwrap();
        let fd: OwnedFd = UnixDatagram::unbound().unwrap().into();
        let receiver = Receiver::over(fill, frames, Socket::stand_in(fd, Arc::clone(&pages)));
        let (completed, transmit) = rings(4).unwrap();
        let card = (Frames::new(transmit.clone()), Fill::new(completed.clone()));
        let sender =
            CardSender::new(Sender::over(transmit, completed, &receiver), Arc::clone(&pages), 4..8);
        (sender, card.0, card.1, pages)
    }

    #[test]
    fn pages_come_back_when_their_frames_were_sent() {
        let (mut sender, mut card, mut sent, pages) = sender();
        let ends = Ends::new([10, 9, 0, 1].into(), [10, 9, 0, 2].into()).unwrap();
        let link = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let template = Template { link, ends, port: 4789, ttl: 64, vni: Vni::new(7).unwrap() };
        let tunnel = template.prefix();
        let guest = Arc::new(Memory::anonymous(2 * PAGE as usize).unwrap());
        guest.write(0, &[0x5a; 2 * PAGE as usize]).unwrap();
        let mut gather = Gather::new(2);
        let [body, long] =
            [1000, PAGE as u32].map(|len| gather.push_range(&guest, 0, len).unwrap());
        let offload = Offload::default();
        let packet = |chain| Packet {
            offload: &offload,
            headers_len: 0,
            head: &[0x11; 60],
            body: gather.body(chain),
            may_pass: false,
        };
        for _ in 0..5 {
            for _ in 0..4 {
                assert_eq!(sender.add(&tunnel, 9, &packet(body)), Ok(Sent::Taken));
            }
            assert_eq!(sender.add(&tunnel, 9, &packet(body)), Ok(Sent::Full));
            assert_eq!(sender.add(&tunnel, 9, &packet(long)), Ok(Sent::Refused));
            // Whoever was refused a page has flushed the others.
            assert_eq!(sender.flush(), Ok(false));
            while let Some(frame) = card.take().unwrap() {
                assert!((4 * PAGE..8 * PAGE).contains(&frame.addr));
                let mut bytes = vec![0; frame.len as usize];
                pages.read(frame.addr, &mut bytes).unwrap();
                let outer = decapsulate(&bytes, bytes.len(), 4789).unwrap();
                assert_eq!((outer.vni, outer.inner_len), (template.vni, 1060));
                let inner = &bytes[outer.inner_at..];
                assert_eq!(inner, [&[0x11; 60][..], &[0x5a; 1000]].concat());
                assert!(sent.push(frame.addr).unwrap());
            }
            card.release().unwrap();
            sent.publish().unwrap();
        }
    }
}
