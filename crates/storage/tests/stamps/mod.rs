//! Writes that overlap in place and in time, each sector of which holds the number of the write: so
//! an image tells which writes are in it, and whether one of them is stale.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastrand::Rng;

/// Sectors that are written to, and of one write at most.
pub const SECTORS: u64 = 64;
pub const LONGEST: u64 = 8;
pub const SECTOR: u64 = 512;

/// How often a back-end is killed where the environment (`RINGMAIN_KILLS`) does not say it: in the
/// tests that always run, and in those that are ignored.
pub const KILLS: u64 = 30;
pub const MANY_KILLS: u64 = 1000;

/// How often a back-end is to be killed.
pub fn kills(default: u64) -> u64 {
    std::env::var("RINGMAIN_KILLS").map_or(default, |kills| kills.parse().expect("a number"))
}

/// A write, and when it was sent and answered, in events of the test.
struct Write {
    sectors: Range<u64>,
    sent: u64,
    answered: Option<u64>,
}

/// All writes of a test.
pub struct Stamps {
    pub random: Rng,
    writes: Vec<Write>,
    events: u64,
}

impl Stamps {
    pub fn new(seed: u64) -> Stamps {
        Stamps { random: Rng::with_seed(seed), writes: Vec::new(), events: 0 }
    }

    /// Writes that were sent, and answers, so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The sectors of the next write, and what it writes. The write counts when it is
    /// [`sent`](Self::sent).
    pub fn next(&mut self) -> (Range<u64>, Vec<u8>) {
        let first = self.random.u64(..SECTORS - LONGEST);
        let sectors = first..first + 1 + self.random.u64(..LONGEST);
        let mut data = vec![0; ((sectors.end - sectors.start) * SECTOR) as usize];
        for sector in data.chunks_mut(SECTOR as usize) {
            sector[..8].copy_from_slice(&(self.writes.len() as u64 + 1).to_le_bytes());
        }
        (sectors, data)
    }

    /// The next write is sent. Returns its number.
    pub fn sent(&mut self, sectors: Range<u64>) -> usize {
        self.events += 1;
        self.writes.push(Write { sectors, sent: self.events, answered: None });
        self.writes.len() - 1
    }

    /// A write was answered.
    #[track_caller]
    pub fn answered(&mut self, number: usize) {
        self.events += 1;
        let before = self.writes[number].answered.replace(self.events);
        assert_eq!(before, None, "write {number} is answered twice");
    }

    /// Checks, when all are answered, that no sector holds a write that was answered before
    /// another one of that sector was sent.
    #[track_caller]
    pub fn check(&self, image: &Path) {
        let image = File::open(image).unwrap();
        for sector in 0..SECTORS {
            let mut stamp = [0; 8];
            image.read_exact_at(&mut stamp, sector * SECTOR).unwrap();
            let covers = |write: &&Write| write.sectors.contains(&sector);
            let newest = self.writes.iter().filter(covers).map(|write| write.sent).max();
            let Some(number) = u64::from_le_bytes(stamp).checked_sub(1) else {
                assert_eq!(newest, None, "sector {sector} was written, and is empty");
                continue;
            };
            let found = &self.writes[number as usize];
            assert!(found.sectors.contains(&sector), "sector {sector} holds write {number}");
            let answered = found.answered.expect("all writes are answered");
            let newer =
                self.writes.iter().position(|write| covers(&write) && write.sent > answered);
            assert_eq!(newer, None, "sector {sector} holds write {number}, which is stale");
        }
    }
}
