//! A frame that tells the network where a guest is now.
//!
//! A guest that has migrated is behind another port of another switch. A guest whose driver has
//! `VIRTIO_NET_F_GUEST_ANNOUNCE` announces its new place itself. For others, the front-end asks the
//! back-end to broadcast a frame in the guest's name (`SEND_RARP`). The frame is fetched like a
//! frame of the guest, so switches learn the address, and the port's restrictions apply.

use std::sync::Arc;

use frame::Mac;
use network::burst::Burst;
use ring::{Memory, Violation};

/// Bytes of the frame, the shortest that Ethernet has.
const LEN: usize = 60;

/// A broadcast frame, and whether it is fetched.
#[derive(Debug)]
pub(super) struct Announcement {
    /// Holds an offload header of zeros, and then the frame.
    memory: Arc<Memory>,
    is_fetched: bool,
}

impl Announcement {
    /// Announces `mac` behind an offload header of `vnet_len` bytes. `None`: no memory is left.
    pub(super) fn new(mac: Mac, vnet_len: usize) -> Option<Announcement> {
        let memory = Memory::anonymous(vnet_len + LEN).ok()?;
        memory.write(vnet_len as u64, &rarp(mac)).ok()?;
        Some(Announcement { memory: Arc::new(memory), is_fetched: false })
    }

    /// Whether it was fetched, and is neither complete nor rewound.
    pub(super) fn is_fetched(&self) -> bool {
        self.is_fetched
    }

    /// Adds the frame to `burst`, unless it was fetched already or there is no room.
    pub(super) fn fetch(&mut self, vnet_len: usize, burst: &mut Burst) -> Result<(), Violation> {
        if self.is_fetched || burst.room() == 0 {
            return Ok(());
        }
        self.is_fetched = true;
        burst.fill(vnet_len, |gather, chains, _| {
            chains.push(gather.push_range(&self.memory, 0, (vnet_len + LEN) as u32)?);
            Ok(1)
        })
    }

    /// The last `n` frames are to be fetched again.
    pub(super) fn rewind(&mut self, n: usize) {
        self.is_fetched = n == 0;
    }
}

/// A reverse ARP request (RFC 903) for the sender's own protocol address, as an announcement.
fn rarp(Mac(mac): Mac) -> [u8; LEN] {
    const ETHERTYPE: [u8; 2] = [0x80, 0x35];
    // Ethernet, IPv4, the lengths of their addresses, and "request reverse".
    const HEADER: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];
    let mut frame = [0; LEN];
    let fields: [&[u8]; 7] = [&[0xff; 6], &mac, &ETHERTYPE, &HEADER, &mac, &[0; 4], &mac];
    for (to, from) in frame.iter_mut().zip(fields.concat()) {
        *to = from;
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_a_broadcast_of_the_guest() {
        let frame = rarp(Mac([0x52, 0x54, 0, 1, 2, 3]));
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[6..14], [0x52, 0x54, 0, 1, 2, 3, 0x80, 0x35]);
        assert_eq!(frame[14..28], [0, 1, 8, 0, 6, 4, 0, 3, 0x52, 0x54, 0, 1, 2, 3]);
        assert_eq!(frame[32..38], frame[6..12]);
        assert_eq!(frame[38..], [0; 22]);
    }

    #[test]
    fn a_frame_that_is_rewound_comes_again() {
        let mut announcement = Announcement::new(Mac([2, 0, 0, 0, 0, 1]), 12).unwrap();
        let mut burst = Burst::new();
        let mut fetched = |announcement: &mut Announcement| {
            burst.reset();
            announcement.fetch(12, &mut burst).unwrap();
            burst.frames().iter().map(|frame| frame.len).collect::<Vec<_>>()
        };
        assert_eq!(fetched(&mut announcement), [60]);
        assert!(fetched(&mut announcement).is_empty());
        announcement.rewind(1);
        assert_eq!(fetched(&mut announcement), [60]);
    }
}
