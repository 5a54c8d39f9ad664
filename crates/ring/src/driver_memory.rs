//! The place of a ring in its driver's memory.

use std::sync::Arc;

use crate::device::RingConfig;
use crate::region::Memory;

/// The memory that both layouts of a virtqueue need to take chains. `A` holds the mapped areas of
/// the ring.
#[derive(Debug)]
pub(crate) struct DriverMemory<A> {
    /// Keeps the areas and all buffers taken ahead mapped.
    pub(crate) mem: Arc<Memory>,
    pub(crate) areas: A,
    /// The region where the last address was found.
    pub(crate) hint: usize,
    /// Descriptors of the ring.
    pub(crate) size: u16,
    /// The driver may use indirect tables.
    pub(crate) indirect: bool,
}

impl<A> DriverMemory<A> {
    /// The memory of a driver that set a ring up with `config`, whose areas are mapped at `areas`.
    pub(crate) fn new(mem: Arc<Memory>, areas: A, config: &RingConfig) -> Self {
        Self { mem, areas, hint: 0, size: config.size, indirect: config.indirect }
    }
}
