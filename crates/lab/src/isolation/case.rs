//! The attacks. To add one, add it to [`CASES`].

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::config;
use super::connections::{Client, Connecting, Watched};
use super::disks::{self, Flooding, Requests};
use super::messages::{Message, Messages, Renegotiating, Unkicked};
use super::neighbour::{Role, Running, Sockets};
use super::receivers::{self, Posting};
use super::senders::{Sender, SenderSpec, Shape};

/// Longest time until a neighbour begins.
const BEGIN: Duration = Duration::from_secs(60);

/// The attack of a neighbour.
#[derive(Clone, Copy, Debug)]
pub enum Attack {
    /// A guest receives every second frame of the innocent sender.
    Receiver {
        /// How the fair neighbour posts its buffers.
        fair: Posting,
        /// How the hostile neighbour posts its buffers.
        hostile: Posting,
    },
    /// A guest sends to another guest of its own.
    Sender {
        /// The traffic of the fair neighbour.
        fair: SenderSpec,
        /// The traffic of the hostile neighbour.
        hostile: SenderSpec,
    },
    /// Front-ends on this many ports send messages. The fair neighbour sends them to a second
    /// daemon.
    Messages(Message, usize),
    /// A front-end negotiates features again and again. The fair neighbour does so with a second
    /// daemon.
    Renegotiating,
    /// A client connects again and again. The fair neighbour does so to a second daemon.
    Connections(Connecting),
    /// About this many tasks watch the hostile guest's interrupt.
    Watchers(usize),
    /// The hostile guest's transmit ring has no kick descriptor.
    Unkicked,
    /// A guest keeps the ring of a disk full of requests.
    Disk {
        /// The requests of the fair neighbour.
        fair: Requests,
        /// The requests of the hostile neighbour.
        hostile: Requests,
    },
}

/// The setting of a case, besides the ports of the innocent guests and their neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Nothing.
    Usual,
    /// Interrupts of the neighbours are deferred.
    Deferring,
    /// A disk, which a neighbour uses.
    Disk,
    /// A disk with one request at a time, which is the innocent one in place of two guests.
    InnocentDisk,
}

/// One attack.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name in results and for `--only`.
    pub name: &'static str,
    /// The attack of the hostile neighbour, for people.
    pub title: &'static str,
    /// The load of the fair neighbour instead.
    pub fair: &'static str,
    /// Workers of the daemon.
    pub workers: u16,
    /// Both neighbours.
    pub attack: Attack,
    /// The setting.
    pub setting: Setting,
}

impl Case {
    /// The guest to which the innocent sender also sends.
    pub fn third(&self) -> Option<u8> {
        matches!(self.attack, Attack::Receiver { .. }).then_some(receivers::NUMBER)
    }

    /// The configuration of the daemon, with workers on these CPUs, or wherever there is room if
    /// none are given.
    ///
    /// # Errors
    /// When an image cannot be made.
    pub fn config(&self, dir: &Path, cpus: &[usize]) -> io::Result<String> {
        let shared = config::shared(dir, self.workers, cpus);
        Ok(match self.setting {
            Setting::Usual => shared,
            Setting::Deferring => config::deferring(dir, self.workers, cpus),
            Setting::Disk | Setting::InnocentDisk => shared + &disks::table(dir)?,
        })
    }

    /// Whether the fair neighbour needs a second daemon.
    pub fn has_decoy(&self) -> bool {
        matches!(self.attack, Attack::Messages(..) | Attack::Renegotiating | Attack::Connections(_))
    }

    /// Starts a thread, on this CPU if one is given, in which a neighbour works, and waits until it
    /// does.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(&self, sockets: &Sockets, role: Role, cpu: Option<usize>) -> io::Result<Running> {
        let running = self.spawn(sockets, role, cpu)?;
        let start = Instant::now();
        while running.steps() == 0 && !running.has_ended() && start.elapsed() < BEGIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(running)
    }

    fn spawn(&self, sockets: &Sockets, role: Role, cpu: Option<usize>) -> io::Result<Running> {
        let sockets = sockets.clone();
        match self.attack {
            Attack::Receiver { fair, hostile } => {
                let posting = if role == Role::Fair { fair } else { hostile };
                Running::start(cpu, move || receivers::Receiver::connect(&sockets, posting))
            }
            Attack::Sender { fair, hostile } => {
                let spec = if role == Role::Fair { fair } else { hostile };
                Running::start(cpu, move || Sender::connect(&sockets, spec))
            }
            Attack::Messages(message, ports) => {
                Running::start(cpu, move || Messages::connect(&sockets, role, message, ports))
            }
            Attack::Renegotiating => {
                Running::start(cpu, move || Renegotiating::connect(&sockets, role))
            }
            Attack::Connections(connecting) => {
                Running::start(cpu, move || Ok(Client::new(&sockets, role, connecting)))
            }
            Attack::Watchers(count) => {
                Running::start(cpu, move || Watched::connect(&sockets, role, count))
            }
            Attack::Unkicked => Running::start(cpu, move || Unkicked::connect(&sockets, role)),
            Attack::Disk { fair, hostile } => {
                let requests = if role == Role::Fair { fair } else { hostile };
                Running::start(cpu, move || Flooding::connect(&sockets, requests))
            }
        }
    }
}

const fn receiver(name: &'static str, title: &'static str, workers: u16, hostile: Posting) -> Case {
    let attack = Attack::Receiver { fair: Posting::Never, hostile };
    Case { name, title, fair: "posts no buffer", workers, attack, setting: Setting::Usual }
}

const fn sender(
    name: &'static str,
    title: &'static str,
    (fair, fair_sender): (&'static str, SenderSpec),
    hostile: SenderSpec,
) -> Case {
    let attack = Attack::Sender { fair: fair_sender, hostile };
    Case { name, title, fair, workers: 1, attack, setting: Setting::Usual }
}

const fn decoy(name: &'static str, title: &'static str, attack: Attack) -> Case {
    let fair = "the same to a second daemon";
    Case { name, title, fair, workers: 1, attack, setting: Setting::Usual }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn plain(len: usize) -> SenderSpec {
    SenderSpec::new(Shape::Plain(len))
}

const fn with_queues(queues: u16, spec: SenderSpec) -> SenderSpec {
    SenderSpec { queues, ..spec }
}

const ORDINARY: (&str, SenderSpec) = ("sends frames of 1514 bytes", plain(1514));
const MANY: (&str, SenderSpec) = (
    "sends as many frames of 1514 bytes, 1024 at a time",
    SenderSpec { many: true, ..plain(1514) },
);
const ORDINARY_4: (&str, SenderSpec) =
    ("sends frames of 1514 bytes on 4 queues", with_queues(4, plain(1514)));
const SMALL: (&str, SenderSpec) = ("sends frames of 60 bytes", plain(60));

const SEGMENTS_32: SenderSpec = SenderSpec::new(Shape::Segments(32));
const SEGMENTS_1448: SenderSpec = SenderSpec::new(Shape::Segments(1448));
const CHAINS: SenderSpec = SenderSpec::new(Shape::Chain(900));

/// All there are.
pub const CASES: &[Case] = &[
    receiver("trickle", "posts a buffer every 10 ms", 1, Posting::Paced(1, ms(10))),
    receiver("trickle-2", "the same, two workers", 2, Posting::Paced(1, ms(10))),
    receiver("bursts", "takes 820 frames, then none for 17 ms", 1, Posting::Bursts(820, ms(17))),
    receiver("bursts-2", "the same, two workers", 2, Posting::Bursts(820, ms(17))),
    receiver(
        "sleeping",
        "takes 1000 frames, then none for 50 ms",
        1,
        Posting::Bursts(1000, ms(50)),
    ),
    receiver("slow", "takes 42 frames each millisecond", 1, Posting::Paced(42, ms(1))),
    receiver("toggled", "enables and disables its ring each 20 ms", 1, Posting::Toggled(ms(20))),
    receiver("toggled-2", "the same, two workers", 2, Posting::Toggled(ms(20))),
    sender("segments", "has 64 KB cut to segments of 32 bytes", ORDINARY, SEGMENTS_32),
    sender("segments-4", "the same on 4 queues", ORDINARY_4, with_queues(4, SEGMENTS_32)),
    sender("segments-1448", "has 64 KB cut to segments of 1448 bytes", MANY, SEGMENTS_1448),
    sender("chains", "sends chains of 912 descriptors of a byte", ORDINARY, CHAINS),
    sender("chains-4", "the same on 4 queues", ORDINARY_4, with_queues(4, CHAINS)),
    sender(
        "small-buffers",
        "receives in buffers of 16 bytes",
        ORDINARY,
        SenderSpec { rx_buffer: 16, ..plain(1514) },
    ),
    sender(
        "holes",
        "sends from memory without pages",
        (
            "sends frames of 60 KB, and gives back pages of a private memory",
            SenderSpec::new(Shape::PrivateHoles(60_000)),
        ),
        SenderSpec::new(Shape::Holes(60_000)),
    ),
    sender(
        "sparse",
        "sends each frame from pages that were never used",
        ("sends frames of 60 KB", plain(60_000)),
        SenderSpec::new(Shape::Sparse(60_000)),
    ),
    sender(
        "addresses",
        "sends each frame from a new address",
        SMALL,
        SenderSpec::new(Shape::Sources(60)),
    ),
    sender("flows", "sends each frame in a new flow", SMALL, SenderSpec::new(Shape::Flows(60))),
    sender("broadcasts", "sends broadcasts", SMALL, SenderSpec::new(Shape::Broadcast(60))),
    sender("arp", "asks for a new address by each frame", SMALL, SenderSpec::new(Shape::Arp)),
    sender(
        "interrupts",
        "is interrupted as often as possible",
        SMALL,
        SenderSpec { interrupts: true, ..plain(60) },
    ),
    sender(
        "kicks",
        "kicks 1000 times, and sends nothing",
        ("signals a private descriptor", SenderSpec::new(Shape::PrivateKicks(1000))),
        SenderSpec::new(Shape::Kicks(1000)),
    ),
    Case {
        setting: Setting::Deferring,
        ..sender(
            "deferred",
            "asks for interrupts that are deferred, on 4 queues",
            ("wants no interrupts, on 4 queues", with_queues(4, plain(60))),
            SenderSpec { interrupts: true, ..with_queues(4, plain(60)) },
        )
    },
    Case {
        name: "watchers",
        title: "has its interrupt watched 20 000 times",
        fair: "has no watchers",
        workers: 1,
        attack: Attack::Watchers(20_000),
        setting: Setting::Usual,
    },
    Case {
        name: "watchers-250k",
        title: "has its interrupt watched 250 000 times",
        fair: "has no watchers",
        workers: 1,
        attack: Attack::Watchers(250_000),
        setting: Setting::Usual,
    },
    Case {
        name: "unkicked",
        title: "has a ring without a kick descriptor",
        fair: "has one with a kick descriptor",
        workers: 1,
        attack: Attack::Unkicked,
        setting: Setting::Usual,
    },
    decoy("enable", "toggles a ring by messages", Attack::Messages(Message::Enable, 1)),
    decoy("enable-2", "the same on 2 ports", Attack::Messages(Message::Enable, 2)),
    decoy("memory", "shows its memory again and again", Attack::Messages(Message::Memory, 1)),
    decoy("features", "changes its features, a log line each time", Attack::Renegotiating),
    decoy("connections", "connects and closes", Attack::Connections(Connecting::Storm)),
    decoy("half-messages", "sends half of a message", Attack::Connections(Connecting::Half)),
    decoy(
        "descriptors",
        "sends 253 descriptors with a message",
        Attack::Connections(Connecting::Descriptors),
    ),
    Case {
        name: "disk-flood",
        title: "has 64 reads of 128 KiB under way",
        fair: "has 64 reads of 4 KiB under way",
        workers: 1,
        attack: Attack::Disk {
            fair: Requests { bytes: 4 << 10, depth: 64 },
            hostile: Requests { bytes: 128 << 10, depth: 64 },
        },
        setting: Setting::Disk,
    },
    Case {
        setting: Setting::InnocentDisk,
        ..sender(
            "beside-disk",
            "sends frames of 60 bytes on 4 queues beside a disk",
            ORDINARY,
            with_queues(4, plain(60)),
        )
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_differ() {
        let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
    }
}
