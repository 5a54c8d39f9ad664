//! Reads of guests with disks: how many come in a second, and the cost of each for the worker and
//! the guest.

use std::io;
use std::time::Duration;

use super::super::costs::Era;
use super::super::inputs::Reads;
use crate::bench::BenchError;
use crate::bench::embedded::site::failed;
use crate::experiment::LabError;
use crate::fixture::{self, DiskHost, DiskHostSpec};

/// Guests that read at the same time.
pub const GUESTS: usize = 20;
/// How long reads are counted.
const TIME: Duration = Duration::from_millis(250);

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The hypervisor's design.
    pub era: Era,
    /// Workers of the backend.
    pub workers: usize,
}

impl Reading {
    /// Reads in a second.
    ///
    /// # Errors
    /// When something does not start, or a guest reports an error of the backend.
    pub fn rate(&self) -> Result<f64, BenchError> {
        Ok(self.run(false)?.rates.iter().sum())
    }

    /// The cost of each read, with one worker that has a CPU to itself.
    ///
    /// # Errors
    /// As before.
    pub(super) fn cost(&self) -> Result<Reads, BenchError> {
        let reads = self.run(true)?;
        let rate = reads.rates.iter().sum::<f64>().max(1.0);
        Ok(Reads { worker: reads.busy * 1e9 / rate, guest: reads.guests * 1e9 / rate })
    }

    fn run(&self, pinned: bool) -> Result<fixture::Reads, BenchError> {
        let spec = DiskHostSpec {
            design: super::design(self.era),
            mapped: false,
            workers: self.workers,
            guests: GUESTS as u16,
            pinned,
        };
        let read = || DiskHost::start(&spec)?.read(TIME);
        read().map_err(|error| match error {
            LabError::Interrupted => BenchError::Interrupted,
            other => failed("read disks as guests")(io::Error::other(other)),
        })
    }
}
