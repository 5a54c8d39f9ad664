//! The figures of one run.

/// The figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figure {
    /// The rate in the load's unit.
    pub rate: f64,
    /// CPU time of the backend for each frame, page or copy, in ns.
    pub backend_ns: Option<f64>,
    /// CPU time of the receiving guest for each frame, in ns.
    pub guest_ns: Option<f64>,
    /// Frames that the receiver got for each interrupt.
    pub frames_per_interrupt: Option<f64>,
}
