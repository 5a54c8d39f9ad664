//! Two guests that follow the protocol, and count what they send and receive.

use std::path::Path;

use control::api::Stats;
use xen::netif::frontend::{Frame, FrameSource};
use xen::netif::slots::Meta;

use super::guest::{Guest, frame, mac};

/// Frames that each sends in a round.
const ROUND: u64 = 16;

/// Their names, and their numbers.
const GUESTS: [(&str, u8); 2] = [("a", 1), ("b", 2)];

/// One of the two.
struct Innocent {
    guest: Guest,
    name: &'static str,
    number: u8,
    /// Frames that were sent, in all.
    sent: u64,
    /// Frames that came, whoever sent them.
    received: u64,
    /// Frames that came from the other one.
    from_other: u64,
}

impl Innocent {
    /// Sends frames to guest number `to`, as many as there is room for up to `count`.
    fn send(&mut self, to: u8, count: u64) -> u64 {
        let tx = &mut self.guest.queue.as_mut().unwrap().tx;
        tx.collect().unwrap();
        let frame = frame(to, self.number, 1514);
        let mut sent = 0;
        while sent < count
            && tx.place().is_some_and(|place| {
                tx.ring().memory().write(place, &frame).unwrap();
                true
            })
        {
            assert!(tx.send(frame.len(), Meta::default()).unwrap());
            sent += 1;
        }
        tx.flush().unwrap();
        self.sent += sent;
        sent
    }

    /// Takes the frames that came, of which `other` may have sent some.
    fn receive(&mut self, other: u8) {
        let rx = &mut self.guest.queue.as_mut().unwrap().rx;
        let mut frame = Frame::default();
        while rx.next(&mut frame).unwrap() {
            let mut source = [0; 6];
            rx.ring().memory().read(frame.pieces[0].0 + 6, &mut source).unwrap();
            self.received += 1;
            self.from_other += u64::from(source == mac(other));
        }
        rx.post().unwrap();
    }
}

/// The two guests.
pub struct Innocents([Innocent; 2]);

impl Innocents {
    /// Connects both.
    pub fn connect(socket: &Path) -> Innocents {
        Innocents(GUESTS.map(|(name, number)| {
            let guest = Guest::connect(socket, name, number);
            Innocent { guest, name, number, sent: 0, received: 0, from_other: 0 }
        }))
    }

    /// Each sends a round of frames to the other, and `a` sends one to guest number `third`, as far
    /// as there is room.
    /// Returns how many frames were sent from one to the other.
    pub fn send(&mut self, third: Option<u8>) -> u64 {
        let [a, b] = &mut self.0;
        if let Some(third) = third {
            a.send(third, ROUND);
        }
        a.send(b.number, ROUND) + b.send(a.number, ROUND)
    }

    /// Takes what came. Returns how many frames have come from one to the other, in all.
    pub fn receive(&mut self) -> u64 {
        let [a, b] = &mut self.0;
        a.receive(b.number);
        b.receive(a.number);
        a.from_other + b.from_other
    }

    /// Whether the daemon has counted exactly the frames that they sent and that came.
    pub fn are_accounted_for(&mut self, stats: &Stats) -> bool {
        self.receive();
        self.0.iter().all(|innocent| {
            let name = format!("guests/{}", innocent.name);
            let port = stats.ports.iter().find(|port| port.name == name).unwrap();
            assert_eq!((port.violations, &port.reason), (0, &None), "{name}");
            let counted = (port.total.tx_frames, port.total.rx_frames);
            counted == (innocent.sent, innocent.received)
        })
    }
}
