//! Attacks that nobody has thought of.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{OFlags, fcntl_setfl, ftruncate};

use crate::Beacon;
use crate::attacks::{shout, transmit};
use crate::front_end::*;

/// Numbers without a pattern, the same ones for the same seed.
pub struct Random(u64);

impl Random {
    /// Seeded by the environment variable `name`, or by the clock. The seed is printed, so that a
    /// failure can be repeated.
    pub fn seeded(name: &str) -> Random {
        let clock = || {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
        };
        let seed =
            std::env::var(name).ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
        eprintln!("{name}={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }

    /// The features to negotiate.
    pub fn kind(&mut self) -> Kind {
        let bits = self.next();
        Kind { packed: bits & 1 != 0, indirect: bits & 2 != 0, acknowledge: bits & 4 != 0 }
    }

    /// A number that is at or beside an edge, more often than not.
    fn edgy(&mut self) -> u64 {
        let edge = self.one_of(&[
            0,
            1,
            2,
            16,
            64,
            4096,
            0x8000,
            1 << 16,
            1 << 31,
            1 << 32,
            GUEST,
            USER,
            GUEST + MEMORY,
            1 << 63,
        ]);
        match self.below(5) {
            0 => self.next(),
            1 => edge.wrapping_sub(1),
            2 => edge.wrapping_add(self.below(64)),
            _ => edge,
        }
    }

    /// Does something.
    pub fn attack(&mut self, hostile: &mut HostileFrontEnd, beacon: &mut Beacon) {
        match self.below(24) {
            0..5 => self.scribble(hostile),
            5..9 => self.describe(hostile),
            9..12 => hostile.publish(self.below(2), self.edgy() as u16),
            12..14 => shout(beacon),
            14..16 => transmit(hostile, self.below(65) as u16),
            16..19 => self.message(hostile),
            19 => hostile.send(&self.bytes(100), &[]),
            20 => self.truncate(hostile),
            21 => self.event(hostile),
            22 => std::thread::sleep(Duration::from_micros(self.below(2000))),
            _ => hostile.kick(self.below(2) as usize),
        }
        beacon.receive(|_| ());
    }

    /// Any bytes anywhere in a ring.
    fn scribble(&mut self, hostile: &HostileFrontEnd) {
        let ring = self.below(2);
        let area = self.one_of(&[desc(ring), driver(ring), device(ring), TABLE]);
        let at = area + self.below(160);
        let bytes = self.bytes(40);
        hostile.write(at, &bytes);
    }

    /// A descriptor that looks like one.
    fn describe(&mut self, hostile: &HostileFrontEnd) {
        let (ring, at) = (self.below(2), self.below(8) as u16);
        let inside = GUEST + self.one_of(&[BUFFER, TABLE, desc(1), SECOND - 8]);
        let addr = if self.below(3) > 0 { inside } else { self.edgy() };
        let len = if self.below(3) > 0 { 16 * self.below(100) } else { self.edgy() };
        hostile.describe_any(
            ring,
            at,
            addr,
            len as u32,
            self.below(8) as u16,
            self.below(70) as u16,
        );
    }

    /// A message that looks like one, mostly.
    fn message(&mut self, hostile: &HostileFrontEnd) {
        let mut body = match self.below(4) {
            0 => self.bytes(80),
            1 => words(&[self.below(5) as u32, self.edgy() as u32]),
            2 => longs(&[self.edgy()]),
            _ => [longs(&[0]), region(self.edgy(), self.edgy(), self.edgy(), self.edgy())].concat(),
        };
        if self.below(8) == 0 {
            body.truncate(self.below(body.len() as u64 + 1) as usize);
        }
        let spare = event();
        let all = [&hostile.rings, &hostile.buffers, &hostile.calls[0], &hostile.kicks[1], &spare];
        let fds: Vec<BorrowedFd<'_>> =
            (0..self.one_of(&[0, 0, 1, 1, 2, 8, 9])).map(|_| self.pick(&all)).collect();
        hostile.say(self.below(46) as u32, &body, &fds);
    }

    fn pick<'a>(&mut self, all: &[&'a OwnedFd]) -> BorrowedFd<'a> {
        self.one_of(all).as_fd()
    }

    fn truncate(&mut self, hostile: &HostileFrontEnd) {
        let (file, len) = if self.below(2) == 0 {
            (&hostile.rings, SECOND)
        } else {
            (&hostile.buffers, MEMORY - SECOND)
        };
        let len = self.below(len);
        ftruncate(file, len).unwrap();
    }

    /// Fills an event, and perhaps makes it block.
    fn event(&mut self, hostile: &HostileFrontEnd) {
        let event = self.one_of(&[
            &hostile.calls[0],
            &hostile.calls[1],
            &hostile.kicks[0],
            &hostile.kicks[1],
        ]);
        fcntl_setfl(event, OFlags::NONBLOCK).unwrap();
        let _ = rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes());
        if self.below(2) == 0 {
            // From here on a kick of ours could block, too: only interrupts are left like that.
            let event = &hostile.calls[self.below(2) as usize];
            fcntl_setfl(event, OFlags::empty()).unwrap();
        }
    }
}
