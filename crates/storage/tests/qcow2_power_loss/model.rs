//! What a disk may hold after a power cut.

use std::collections::HashMap;
use std::ops::Range;

/// What was written to each sector, oldest first, and the oldest of it that may be there.
pub struct Model {
    sectors: Vec<Sector>,
    requests: HashMap<usize, Range<u64>>,
}

struct Sector {
    /// Requests, and the stamps that they write.
    written: Vec<(usize, u64)>,
    /// The newest one that the guest relies on.
    relied: usize,
}

impl Model {
    /// A disk with these stamps.
    pub fn new(first: impl Iterator<Item = u64>) -> Model {
        let sector = |stamp| Sector { written: vec![(0, stamp)], relied: 0 };
        Model { sectors: first.map(sector).collect(), requests: HashMap::new() }
    }

    /// The disk has so many sectors from now on. The new ones are zeros.
    pub fn grow(&mut self, sectors: u64) {
        let zeros = || Sector { written: vec![(0, 0)], relied: 0 };
        self.sectors.resize_with(sectors as usize, zeros);
    }

    /// A request begins to write a stamp to these sectors. Its number is above 0.
    pub fn sent(&mut self, request: usize, sectors: Range<u64>, stamp: u64) {
        for sector in sectors.clone() {
            self.sectors[sector as usize].written.push((request, stamp));
        }
        self.requests.insert(request, sectors);
    }

    /// The guest relies on a request from now on.
    pub fn relied(&mut self, request: usize) {
        for sector in self.requests.remove(&request).into_iter().flatten() {
            let sector = &mut self.sectors[sector as usize];
            let which = sector.written.iter().position(|(number, _)| *number == request);
            sector.relied = sector.relied.max(which.unwrap_or(0));
        }
    }

    /// Checks a disk.
    ///
    /// # Errors
    /// A sector that holds what it must not.
    pub fn check(&self, found: impl Fn(u64) -> Option<u64>) -> Result<(), String> {
        for (number, sector) in self.sectors.iter().enumerate() {
            let stamp = found(number as u64);
            let allowed = &sector.written[sector.relied..];
            if !allowed.iter().any(|(_, written)| Some(*written) == stamp) {
                return Err(format!("sector {number} holds {stamp:?}, and not one of {allowed:?}"));
            }
        }
        Ok(())
    }
}
