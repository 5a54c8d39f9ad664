//! The options that are compared: each option, on against off, and its loads. A new option is added
//! to [`CASES`].

use hypervisor::embedded::{Copying, Design, Flush, Locking, Maptrack};

use super::load::{Load, Size};

/// One way of serving guests.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The label in the table.
    pub label: &'static str,
    /// Lines of the port's table in the configuration.
    pub keys: &'static str,
    /// The hypervisor's inner design.
    pub design: Design,
    /// The offset in a page that copies go to, for loads without a daemon.
    pub offset: u16,
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name in results and for `--only`.
    pub name: &'static str,
    /// Without it.
    pub off: Setting,
    /// With it.
    pub on: Setting,
    /// The loads that it is measured with.
    pub loads: &'static [Load],
    /// The benefit of the option, and its cost.
    pub why: &'static str,
}

const NEWEST: Design = Design::NEW;

/// Everything as it is by default.
const PLAIN: Setting = Setting { label: "off", keys: "", design: NEWEST, offset: 0 };

const fn keys(label: &'static str, keys: &'static str) -> Setting {
    Setting { label, keys, ..PLAIN }
}

const fn design(label: &'static str, design: Design) -> Setting {
    Setting { label, design, ..PLAIN }
}

const SMALL: Load = Load::Frames { size: Size::Small, queues: 1 };
const LARGE: Load = Load::Frames { size: Size::Large, queues: 1 };
const SMALL_2: Load = Load::Frames { size: Size::Small, queues: 2 };
const LARGE_2: Load = Load::Frames { size: Size::Large, queues: 2 };

/// Frames between guests, in all patterns of arrival.
const GUESTS: &[Load] = &[SMALL, LARGE, SMALL_2, LARGE_2, Load::Paced, Load::Echo, Load::Streams];
/// The loads that contend for locks.
const LOCKS: &[Load] = &[
    Load::Copy { threads: 1 },
    Load::Copy { threads: 2 },
    Load::Copy { threads: 4 },
    SMALL_2,
    LARGE_2,
];
const MAPPING: &[Load] =
    &[Load::Map { threads: 1 }, Load::Map { threads: 2 }, Load::Map { threads: 4 }];

const SIX: Setting = keys("6 frames", "interrupt-frames = 6\ninterrupt-microseconds = 1000");
const SIXTY_FOUR: Setting =
    keys("64 frames", "interrupt-frames = 64\ninterrupt-microseconds = 1000");
const ENTRIES: Setting = design("entries", Design { locking: Locking::Entries, ..NEWEST });
const PER_VCPU: Setting = design("per-vcpu", Design { maptrack: Maptrack::PerVcpu, ..NEWEST });
const BATCH: Setting = design("batch", Design { flush: Flush::Batch, ..NEWEST });

/// All there are.
pub const CASES: &[Case] = &[
    Case {
        name: "locking-entries",
        off: design("table", Design { locking: Locking::Table, ..NEWEST }),
        on: ENTRIES,
        loads: LOCKS,
        why: "uses of different grants no longer wait for each other; each use takes two locks \
        instead of one",
    },
    Case {
        name: "locking-per-cpu",
        off: ENTRIES,
        on: design("per-cpu", NEWEST),
        loads: LOCKS,
        why: "readers share no cache line; this matters only where several CPUs read at the same time",
    },
    Case {
        name: "maptrack-per-vcpu",
        off: design("single", Design { maptrack: Maptrack::Single, ..NEWEST }),
        on: PER_VCPU,
        loads: MAPPING,
        why: "a handle is taken and given back without a lock",
    },
    Case {
        name: "maptrack-stealing",
        off: PER_VCPU,
        on: design("stealing", NEWEST),
        loads: MAPPING,
        why: "no handle lies unused on the list of another CPU; each use takes a lock that is \
        rarely contended",
    },
    Case {
        name: "flush-batch",
        off: design("always", Design { flush: Flush::Always, ..NEWEST }),
        on: BATCH,
        loads: MAPPING,
        why: "one flush of TLBs, and one system call, for all pages that are unmapped together",
    },
    Case {
        name: "flush-touched",
        off: BATCH,
        on: design("touched", NEWEST),
        loads: MAPPING,
        why: "no flush for pages that were not touched; each touched page costs a fault",
    },
    Case {
        name: "copying-keep",
        off: design("release", Design { copying: Copying::Release, ..NEWEST }),
        on: design("keep", NEWEST),
        loads: &[Load::Copy { threads: 1 }, Load::Copy { threads: 2 }, SMALL, LARGE],
        why: "a page that the next copy uses, too, is looked up once",
    },
    Case {
        name: "interrupts-6",
        off: PLAIN,
        on: SIX,
        loads: GUESTS,
        why: "up to 6 frames share an interrupt; a few frames wait for others, or for a millisecond, unless the guest answers each frame",
    },
    Case {
        name: "interrupts-64",
        off: PLAIN,
        on: SIXTY_FOUR,
        loads: GUESTS,
        why: "up to 64 frames share an interrupt; a few frames wait for others, or a millisecond, unless they are answered one by one",
    },
    Case {
        name: "interrupts-64-over-6",
        off: SIX,
        on: SIXTY_FOUR,
        loads: GUESTS,
        why: "fewer interrupts still; frames wait longer",
    },
    Case {
        name: "align",
        off: PLAIN,
        on: Setting { offset: Load::UNALIGNED % 64, ..keys("on", "align = true") },
        loads: &[Load::Copy { threads: 1 }, SMALL, LARGE],
        why: "fewer copies cross cache lines; frames of this frontend are aligned in any case, \
        frames of stock guests are not",
    },
    Case {
        name: "grants",
        off: keys("page", "grants = \"page\""),
        on: keys("range", "grants = \"range\""),
        loads: &[SMALL, LARGE, Load::Streams],
        why: "only the bytes of the frame can be accessed; each frame is granted, and its grant revoked",
    },
    Case {
        name: "copy",
        off: keys("backend", "copy = \"backend\"\ngrants = \"range\""),
        on: keys("guest", "copy = \"guest\""),
        loads: &[SMALL, LARGE, LARGE_2, Load::Streams],
        why: "the receiver copies, into its own cache and with its own CPU time; grants are \
        passed on, and the receiver has to request each copy",
    },
    Case {
        name: "device-queue",
        off: PLAIN,
        on: keys("on", "device-queue = \"up0\""),
        loads: &[Load::Wire],
        why: "neither bridge, TAP nor daemon touches the payload: the kernel copies it into the \
              guest's buffers; frames for which there is no buffer are lost, and each of them is a \
              frame of the wire's, never a segment of many",
    },
    Case {
        name: "cache",
        off: PLAIN,
        on: keys("8192 pages", "cache = 8192"),
        loads: &[SMALL, LARGE, SMALL_2, LARGE_2, Load::Streams],
        why: "pages that are used again are neither looked up nor locked; a table of mapped \
        pages is searched instead",
    },
];
