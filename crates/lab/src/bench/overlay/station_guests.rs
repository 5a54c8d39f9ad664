//! Guests whose ports are vhost-user sockets.

use std::path::PathBuf;

use ring::driver::Piece;

use super::frames::{NUMBERS, Traffic, VARYING};
use super::guests::{Guests, RING};
use crate::isolation::neighbour;
use crate::isolation::station::{Station, StationSpec, VNET};

/// The guests of a run.
pub(super) struct StationGuests {
    sender: Station,
    receiver: Station,
    /// Bytes of a frame, `virtio_net_hdr` included.
    len: u32,
    /// The frame that is being received.
    incoming: Incoming,
}

/// A frame that may fill several buffers.
#[derive(Default)]
struct Incoming {
    /// Buffers that are still to come.
    buffers: u16,
    /// Whether the frame is one of the sender's.
    counts: bool,
}

impl StationGuests {
    /// Connects the sender and the receiver to their `sockets`, and announces both. `features` are
    /// those of virtio-net that the guests use if they are offered. An error is one line.
    pub(super) fn connect(
        sockets: &[PathBuf; 2],
        traffic: Traffic,
        features: u64,
    ) -> Result<StationGuests, String> {
        let frame = traffic.frame();
        let spec = StationSpec {
            ring: RING,
            tx_buffer: frame.len() as u64,
            tx_buffers: traffic.window() as u16,
            features,
            rx_buffer: traffic.rx_buffer() as u32,
            ..StationSpec::default()
        };
        let prepare = || {
            let [sender, receiver] = sockets;
            let mut sender = Station::connect(sender, &spec)?;
            let mut receiver = Station::connect(receiver, &spec)?;
            receiver.post(0, usize::MAX);
            neighbour::announce(&mut receiver, NUMBERS[1])?;
            neighbour::announce(&mut sender, NUMBERS[0])?;
            sender.fill(&frame);
            let len = frame.len() as u32;
            Ok(StationGuests { sender, receiver, len, incoming: Incoming::default() })
        };
        prepare().map_err(in_a_line)
    }
}

fn in_a_line(error: vhost_user_driver::DriverError) -> String {
    error.to_string()
}

impl Guests for StationGuests {
    fn send(&mut self, traffic: Traffic, first: u64, count: usize) -> Result<usize, String> {
        self.sender.reclaim(0).map_err(in_a_line)?;
        let mut sent = 0;
        while sent < count {
            let Some(addr) = self.sender.buffer(0) else { break };
            let (bytes, len) = traffic.varying(first + sent as u64);
            self.sender.write(addr + VARYING as u64, &bytes[..len]);
            if !self.sender.send(0, addr, &[Piece { addr, len: self.len }]) {
                break;
            }
            sent += 1;
        }
        if sent > 0 {
            self.sender.publish(0);
        }
        Ok(sent)
    }

    fn receive(&mut self, traffic: Traffic) -> Result<u64, String> {
        let (incoming, mut payload) = (&mut self.incoming, 0);
        let count = self.receiver.receive(0, |guest, addr, len| {
            if incoming.buffers > 0 {
                incoming.buffers -= 1;
                payload += if incoming.counts { u64::from(len) } else { 0 };
                return;
            }
            let mut head = [0; VNET + 6];
            if guest.memory().read(addr, &mut head).is_err() {
                return;
            }
            *incoming = Incoming {
                buffers: u16::from_le_bytes([head[10], head[11]]).saturating_sub(1),
                counts: head[VNET..] == neighbour::address(NUMBERS[1]),
            };
            let data = u64::from(len).saturating_sub((VNET + traffic.headers()) as u64);
            payload += if incoming.counts { data } else { 0 };
        });
        if count.map_err(in_a_line)? > 0 {
            self.receiver.post(0, usize::MAX);
        }
        Ok(payload)
    }
}
