//! The steps of a worker, and the time of each step while a profile is taken.

use runtime::Counter;

use crate::flows::Flows;

/// A step of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Step {
    /// Takes requests from rings, and parses the frames.
    Fetch,
    /// Finds out where frames go.
    Classify,
    /// Finds room for them, and copies what is mapped.
    Deliver,
    /// Copies what is granted.
    Copy,
    /// Makes both rings' new entries visible, and interrupts.
    Publish,
    /// Polls rings that have nothing, and does everything else that belongs to no burst.
    Poll,
    /// Sleeps in the kernel.
    Sleep,
}

impl Step {
    /// All of them, in the order of their numbers.
    pub const ALL: [Step; STEPS] = [
        Step::Fetch,
        Step::Classify,
        Step::Deliver,
        Step::Copy,
        Step::Publish,
        Step::Poll,
        Step::Sleep,
    ];

    /// The name under which the step is shown.
    pub fn name(self) -> &'static str {
        match self {
            Step::Fetch => "fetch",
            Step::Classify => "classify",
            Step::Deliver => "deliver",
            Step::Copy => "copy",
            Step::Publish => "publish",
            Step::Poll => "poll",
            Step::Sleep => "sleep",
        }
    }
}

const STEPS: usize = 7;

/// Ticks by step.
pub type Ticks = [u64; STEPS];

/// Ticks by step, written by one thread and readable by all.
#[derive(Default, Debug)]
pub struct Spent([Counter; STEPS]);

impl Spent {
    /// The ticks of each step now.
    pub fn get(&self) -> Ticks {
        self.0.each_ref().map(Counter::get)
    }

    pub(crate) fn add(&self, step: Step, ticks: u64) {
        self.0[step as usize].add(ticks);
    }
}

/// Times spent on the frames that a queue received while a profile was taken.
#[derive(Default, Debug)]
pub struct Charged {
    /// Ticks by step.
    pub spent: Spent,
    /// Frames.
    pub frames: Counter,
    /// Bytes of those frames.
    pub bytes: Counter,
    /// Bursts that they came in.
    pub bursts: Counter,
    /// Flows among them.
    pub received: Flows,
    /// Flows that the queue sent.
    pub sent: Flows,
}
