//! The arguments of `ringmain-lab load`.

use std::ops::Range;

use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};

use super::Error;
use super::gaps::GapDistribution;
use super::lengths::MIX;
use super::port::Port;

const ABOUT: &str = "\
Ports form pairs, and a port sends to the other port of its pair; a single port sends to itself. \
With --fan-out, the first port sends to all others instead, one frame to each in turn; with \
--from, a network device does. Frames are Ethernet/IPv4/UDP, or TCP with --tso. Each frame has a \
unique combination of flow, number and send time.

The generator checks every frame that comes back: the length; the virtio-net header, with all \
offload fields; all headers of the frame; the tag behind the headers; the payload, which is \
different in every frame; and the place of the frame in its flow. The tag holds the flow, the \
number and the time under a keyed check, which also covers the length of the frame. By default, \
the check of the payload covers one word of 8 bytes in every 256 bytes of frames up to 2048 \
bytes, one word of 8 bytes in every 1024 bytes of larger frames, and the last bytes of the \
frame. With --verify full, the check covers all of the payload. The checks detect truncation, \
swapped or stale buffers, lost pieces, duplicates and reordering.";

/// Options of the traffic generator.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = ABOUT)]
pub struct Args {
    /// vhost-user sockets, one per guest. With server:PATH, the generator listens; with
    /// client:PATH, the generator connects; with PATH alone, --server and --client decide
    #[arg(long, value_name = "SOCKET,...", value_delimiter = ',', required = true)]
    pub ports: Vec<Port>,

    /// Listen on the sockets without a prefix, for back-ends that connect
    #[arg(long, conflicts_with = "client")]
    pub server: bool,

    /// Connect to the sockets without a prefix, for back-ends that listen (the default)
    #[arg(long)]
    pub client: bool,

    /// Number of the first guest, from which addresses are derived. The number must be even.
    /// Generators on the same switch need different numbers
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=60000))]
    pub number: u16,

    /// Seconds to wait for the back-end, and for the first frame to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub wait: f64,

    /// Queue pairs of each guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub queues: u16,

    /// Length of a frame in bytes, from the Ethernet header to the last byte, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub size: u32,

    /// Mix lengths as on the Internet: of 12 flows, seven have frames of 64 bytes, four of 590
    /// bytes, and one of 1514 bytes
    #[arg(long, conflicts_with_all = ["size", "tso"])]
    pub mix: bool,

    /// Send frames with offloads: TCP over IPv4 with a partial checksum, and with TSO where the
    /// size exceeds one segment
    #[arg(long)]
    pub tso: bool,

    /// With --tso: payload bytes of a segment
    #[arg(long, value_name = "BYTES", default_value_t = 1460)]
    pub mss: u16,

    /// Flows of each sender over its queues [default and least: one per queue, receiver and length]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub flows: Option<u32>,

    /// Source addresses of the frames
    #[arg(long, value_enum, default_value_t = Sources::Own)]
    pub sources: Sources,

    /// Which guests of a pair send
    #[arg(long, value_enum, default_value_t = Directions::One)]
    pub direction: Directions,

    /// The first port sends to all others, flow by flow, and no other port sends
    #[arg(long, conflicts_with = "direction")]
    pub fan_out: bool,

    /// Frames leave by this network device, such as a TAP, and all ports receive them, flow by flow
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["direction", "fan_out", "tso"])]
    pub from: Option<String>,

    /// Closed loop: maximum number of frames in flight of each sender [default: the capacity of the
    /// ring]
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    pub window: Option<u64>,

    /// Fixed rate of each sender, in frames per second. With 0, guests connect and send nothing
    #[arg(long, value_name = "PPS")]
    pub rate: Option<u64>,

    /// With --rate: distribution of the frames over time
    #[arg(long, value_enum, default_value_t = GapDistribution::Even, requires = "rate")]
    pub gaps: GapDistribution,

    /// Cold buffers: cycle each guest's Tx buffers and its Rx buffers through this many bytes of
    /// memory each, like 100M or 64K [default: hot buffers, no more than the ring holds]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub pool: Option<u64>,

    /// Descriptors of a buffer: one descriptor, a chain of descriptors, or an indirect table
    #[arg(long, value_enum, default_value_t = Layout::Single)]
    pub layout: Layout,

    /// Place of the virtio-net header [default: separate with --layout chained or indirect, or
    /// where the back-end demands it]
    #[arg(long, value_enum)]
    pub header: Option<HeaderPlace>,

    /// With --layout chained or indirect: maximum number of bytes of a descriptor
    #[arg(long, value_name = "BYTES")]
    pub piece: Option<u32>,

    /// Descriptors in each Tx ring
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub ring: u16,

    /// Descriptors in each Rx ring [default: the value of --ring]
    #[arg(long, value_name = "N")]
    pub rx_ring: Option<u16>,

    /// Length of a receive buffer in bytes, including the virtio-net header [default: 2048; with
    /// --tso, 4096 if buffers are mergeable, else the length that a frame needs]
    #[arg(long, value_name = "BYTES")]
    pub rx_buffer: Option<u32>,

    /// Use packed rings instead of split ones
    #[arg(long)]
    pub packed: bool,

    /// Do not negotiate mergeable receive buffers
    #[arg(long)]
    pub no_mergeable: bool,

    /// Do not negotiate the event index
    #[arg(long)]
    pub no_event_idx: bool,

    /// Do not negotiate indirect descriptors
    #[arg(long)]
    pub no_indirect: bool,

    /// Behave like a driver from before virtio 1.0: do not negotiate VIRTIO_F_VERSION_1
    #[arg(long, conflicts_with = "packed")]
    pub legacy: bool,

    /// Guests without work sleep until an interrupt [default: guests poll]
    #[arg(long)]
    pub interrupts: bool,

    /// Seconds of the measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub duration: f64,

    /// Seconds of traffic before the measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub warm_up: f64,

    /// Part of each frame's payload that is checked
    #[arg(long, value_enum, default_value_t = Verify::Sampled)]
    pub verify: Verify,

    /// Maximum number of frames to send or to receive at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub burst: u16,

    /// Regions of each guest's memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    pub regions: u64,

    /// Number of threads, among which pairs of guests are distributed, or guests if there are more
    /// threads than pairs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// CPU for each thread
    #[arg(long, value_name = "CPU,...", value_delimiter = ',')]
    pub cpu: Vec<usize>,

    /// Process ID of the back-end, whose CPU time is reported separately from the CPU time of other
    /// processes
    #[arg(long, value_name = "PID")]
    pub backend_pid: Option<u32>,

    /// Limit of the CPU time of other processes, in percent of one CPU. A run above the limit
    /// counts as disturbed
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub disturbed_above: f64,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Both or one of the guests of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Directions {
    /// The first of a pair sends.
    One,
    /// Both send.
    Both,
}

/// The source addresses of a sender's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sources {
    /// The sender's own address.
    Own,
    /// A different address for each flow.
    Flow,
    /// A new address for each frame.
    Frame,
}

/// Shape of the descriptors of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// One descriptor.
    Single,
    /// A chain in the ring.
    Chained,
    /// A table beside the ring.
    Indirect,
}

/// Where the virtio-net header lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HeaderPlace {
    /// In front of the frame, in the same descriptor.
    Together,
    /// In a descriptor of its own.
    Separate,
}

/// How much of the payload is written and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// Words at intervals.
    Sampled,
    /// Every byte.
    Full,
}

/// A number of bytes, with an optional K, M or G (powers of 1024).
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    number.ok_or_else(|| format!("{text:?} is not a number of bytes, like 100M"))
}

/// Smallest frame with room for headers and tag; the largest that IPv4 can say.
const LARGEST: u32 = 65535 + 14;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    args: Args,
}

impl Args {
    /// From words as on a command line, without the command itself: for tests and
    /// benchmarks.
    ///
    /// # Errors
    /// The problem with the words.
    pub fn from_words<I: IntoIterator<Item: Into<std::ffi::OsString> + Clone>>(
        words: I,
    ) -> Result<Self, clap::Error> {
        Line::from_arg_matches(&Line::command().try_get_matches_from(words)?).map(|line| line.args)
    }

    /// Smallest frame that holds its headers and the tag.
    pub(super) fn smallest(&self) -> u32 {
        if self.tso { 76 } else { 64 }
    }

    /// Refuses options that contradict each other, or are out of range.
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |why: String| Err(Error::Options(why));
        if self.fan_out && self.ports.len() < 2 {
            return refuse("--fan-out needs a port that sends, and others that receive".into());
        }
        let pairs = !self.fan_out && self.from.is_none();
        if pairs && self.ports.len() > 1 && self.ports.len() % 2 == 1 {
            return refuse(format!("{} ports: ports come in pairs, or alone", self.ports.len()));
        }
        if self.number % 2 == 1 {
            return refuse(format!(
                "the first guest has number {}: numbers of pairs begin with an even one",
                self.number
            ));
        }
        if self.size < self.smallest() || self.size > LARGEST {
            return refuse(format!(
                "frames of {} bytes: {} to {LARGEST} are possible",
                self.size,
                self.smallest()
            ));
        }
        if self.mss == 0 {
            return refuse("segments need a payload: --mss is 0".into());
        }
        for ring in [self.ring, self.rx_ring()] {
            if !(2..=32768).contains(&ring) || !(self.packed || ring.is_power_of_two()) {
                return refuse(format!(
                    "a ring of {ring}: 2 to 32768, and a power of two unless packed"
                ));
            }
        }
        if self.layout == Layout::Single
            && (self.piece.is_some() || self.header == Some(HeaderPlace::Separate))
        {
            return refuse(
                "--layout single is one descriptor: it has no pieces, and no header apart".into(),
            );
        }
        if self.layout == Layout::Indirect && self.no_indirect {
            return refuse("--layout indirect and --no-indirect exclude each other".into());
        }
        if self.piece.is_some_and(|piece| piece < 16) {
            return refuse("a piece has at least 16 bytes".into());
        }
        if self.threads == 0 || self.threads > self.ports.len() {
            return refuse(format!("{} threads for {} guests", self.threads, self.ports.len()));
        }
        let seconds = [self.wait, self.duration, self.warm_up];
        if seconds.iter().any(|s| !s.is_finite() || *s < 0.0) || self.duration == 0.0 {
            return refuse("times are seconds, and something must be measured".into());
        }
        if self.window == Some(0) {
            return refuse("nothing would be sent".into());
        }
        Ok(())
    }

    /// The numbers of the guests.
    pub(super) fn numbers(&self) -> Range<u16> {
        let count = u16::try_from(self.ports.len()).unwrap_or(u16::MAX);
        self.number..self.number.saturating_add(count)
    }

    pub(super) fn rx_ring(&self) -> u16 {
        self.rx_ring.unwrap_or(self.ring)
    }

    /// How many guests each sender sends to.
    pub(super) fn receivers(&self) -> u32 {
        match self.ports.len() as u32 {
            ports if self.from.is_some() => ports,
            ports if self.fan_out => ports.saturating_sub(1),
            _ => 1,
        }
    }

    /// The lengths of frames, which flows have in turn.
    pub(super) fn lengths(&self) -> &[u32] {
        if self.mix { &MIX } else { std::slice::from_ref(&self.size) }
    }

    /// The largest of them.
    pub(super) fn largest(&self) -> u32 {
        self.lengths().iter().copied().max().unwrap_or(self.size)
    }

    pub(super) fn flows(&self) -> u32 {
        let shapes = self.receivers() * self.lengths().len() as u32;
        self.flows.unwrap_or(1).max(u32::from(self.queues)).max(shapes)
    }

    /// Whether frames go as soon as the ring has room.
    pub(super) fn is_open(&self) -> bool {
        self.window.is_none() && self.rate.is_none()
    }

    /// Whether port number `index` is listened on.
    pub(super) fn listens(&self, port: &Port) -> bool {
        port.listen.unwrap_or(self.server)
    }
}

#[cfg(test)]
mod tests;
