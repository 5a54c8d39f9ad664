//! The loads of guests.

use std::fmt;

/// How long frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 64 bytes.
    Small,
    /// Nearly 64 KiB, with TCP segmentation offload.
    Large,
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Frames from guest to guest at full rate; each queue has a thread in either guest.
    Frames {
        /// Their size.
        size: Size,
        /// Queues of both guests, and workers.
        queues: u16,
    },
    /// Four small frames at a time, with pauses: the receiver sleeps between them.
    Paced,
    /// A small frame there and back, one at a time.
    Echo,
    /// TCP through the kernels of two `ringmain guest`: eight streams over one queue.
    Streams,
    /// TCP from the other end of a wire into a `ringmain guest`: eight streams of frames as long as
    /// the wire's MTU.
    Wire,
    /// Without guests: pages that are mapped and unmapped, 16 at a time.
    Map {
        /// Threads that do it.
        threads: usize,
    },
    /// Without guests: granted pages copied to granted pages, four pieces of each, 64 copies at a
    /// time.
    Copy {
        /// Threads that do it.
        threads: usize,
    },
}

impl Load {
    /// The offset in a page at which the frames of stock Linux guests begin.
    pub const UNALIGNED: u16 = 66;

    /// The unit of the rate, and how many of the counted items are one of that unit.
    pub fn unit(self) -> (&'static str, f64) {
        match self {
            Load::Frames { size: Size::Small, .. } => ("Mframes/s", 1e6),
            Load::Frames { size: Size::Large, .. } | Load::Streams | Load::Wire => {
                ("Gb/s", 1e9 / 8.0)
            }
            Load::Paced => ("kframes/s", 1e3),
            Load::Echo => ("krounds/s", 1e3),
            Load::Map { .. } => ("Mpages/s", 1e6),
            Load::Copy { .. } => ("Mcopies/s", 1e6),
        }
    }

    /// Whether iperf makes it.
    pub fn is_iperf(self) -> bool {
        matches!(self, Load::Streams | Load::Wire)
    }

    /// Whether its rate is counted in bytes.
    pub fn counts_bytes(self) -> bool {
        self.unit().0 == "Gb/s"
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Frames { size: Size::Small, queues } => write!(f, "64 B, {queues} q"),
            Load::Frames { size: Size::Large, queues } => write!(f, "64 KB, {queues} q"),
            Load::Paced => write!(f, "paced"),
            Load::Echo => write!(f, "echo"),
            Load::Streams => write!(f, "iperf -P 8"),
            Load::Wire => write!(f, "iperf, wire"),
            Load::Map { threads } => write!(f, "map, {threads} thr"),
            Load::Copy { threads } => write!(f, "copy, {threads} thr"),
        }
    }
}
