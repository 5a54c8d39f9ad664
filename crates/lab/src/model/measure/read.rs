//! Reads of guests with disks: how many come in a second, and the cost of each for the worker and
//! the guest.

use std::io;
use std::time::Duration;

use super::super::costs::Era;
use super::super::inputs::Reads;
use crate::bench::BenchError;
use crate::bench::embedded::site::failed;
use crate::experiment::LabError;
use crate::fixture::{self, DiskHost, DiskHostSpec, Placement};

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
    pub fn rate(&self, placement: Placement) -> Result<f64, BenchError> {
        Ok(self.run(placement)?.rates.iter().sum())
    }

    /// The cost of each read, with one worker that has a CPU to itself.
    ///
    /// # Errors
    /// As before.
    pub(super) fn cost(&self) -> Result<Reads, BenchError> {
        let rate = |reads: &fixture::Reads| reads.rates.iter().sum::<f64>().max(1.0);
        let apart = self.run(Placement::Apart)?;
        let together = self.run(Placement::Together)?;
        Ok(Reads {
            worker: apart.busy * 1e9 / rate(&apart),
            guest: apart.guests * 1e9 / rate(&apart),
            together: (together.backend + together.guests) * 1e9 / rate(&together),
        })
    }

    fn run(&self, placement: Placement) -> Result<fixture::Reads, BenchError> {
        let spec = DiskHostSpec {
            design: super::design(self.era),
            mapped: false,
            workers: self.workers,
            guests: GUESTS as u16,
            placement,
        };
        let read = || DiskHost::start(&spec)?.read(TIME);
        read().map_err(|error| match error {
            LabError::Interrupted => BenchError::Interrupted,
            other => failed("read disks as guests")(io::Error::other(other)),
        })
    }
}
