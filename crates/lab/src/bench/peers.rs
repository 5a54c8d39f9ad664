//! The back-ends that carry the generator's frames: the daemon, OVS-DPDK and the bare copy, or the
//! daemon of another commit, each on the same CPU.

use std::path::{Path, PathBuf};

use super::ceiling::Ceiling;
use super::point::{Kind, Point, Waiting};
use super::tally::Who;
use super::{Args, BenchError, find};
use crate::daemon::Daemon;
use crate::ovs::Ovs;
use crate::program::Program;

/// All back-ends of a comparison.
pub struct Peers {
    daemon: Daemon,
    peer: Option<Peer>,
    ceilings: Option<Ceilings>,
}

/// The bare copies.
struct Ceilings {
    polls: Ceiling,
    sleeps: Ceiling,
}

/// The back-end that Ringmain is compared with.
enum Peer {
    Ovs(Ovs),
    /// Ringmain of another commit.
    Other(Daemon),
}

/// The names of the daemon's sockets.
const SOCKETS: [&str; 2] = ["a.sock", "b.sock"];

impl Peers {
    /// Starts the back-ends that `args` name.
    ///
    /// # Errors
    /// When one is missing or does not come up.
    pub fn start(args: &Args) -> Result<Self, BenchError> {
        let binary = find(&args.program)?;
        let cpu = args.worker_cpu;
        let peer = Peer::start(args)?;
        let no_ceiling = args.alone || args.against.is_some();
        let ceilings = if no_ceiling { None } else { Some(Ceilings::start(cpu)?) };
        let daemon = Daemon::start(&binary, |dir| config(dir, cpu), None)?;
        Ok(Self { daemon, peer, ceilings })
    }

    fn ovs(&self) -> Option<&Ovs> {
        match &self.peer {
            Some(Peer::Ovs(ovs)) => Some(ovs),
            Some(Peer::Other(_)) | None => None,
        }
    }

    /// Version of OVS-DPDK, if it takes part.
    pub fn ovs_version(&self) -> Option<&str> {
        self.ovs().map(Ovs::version)
    }

    /// The order of back-ends at a point: Ringmain is next to each of the others.
    pub fn of(&self, point: &Point) -> Vec<Who> {
        let bare = self.ceiling(point.kind).is_some();
        [(self.peer.is_some(), Who::Peer), (true, Who::Ringmain), (bare, Who::Ceiling)]
            .into_iter()
            .filter_map(|(takes_part, who)| takes_part.then_some(who))
            .collect()
    }

    /// The bare copy of a point.
    fn ceiling(&self, kind: Kind) -> Option<&Ceiling> {
        let Ceilings { polls, sleeps } = self.ceilings.as_ref()?;
        match kind {
            Kind::Traffic { bare: Some(Waiting::Polls), .. } => Some(polls),
            Kind::Traffic { bare: Some(Waiting::Sleeps), .. } => Some(sleeps),
            _ => None,
        }
    }

    /// The generator's options for one of them, at a point of this kind. `None`: it does not take
    /// part.
    pub fn place(&self, who: Who, kind: Kind) -> Option<String> {
        match who {
            Who::Ringmain => Some(place_of(&self.daemon)),
            Who::Peer => match self.peer.as_ref()? {
                Peer::Ovs(ovs) => {
                    let sockets = join(ovs.sockets());
                    Some(format!("--ports {sockets} --server --backend-pid {}", ovs.id()))
                }
                Peer::Other(daemon) => Some(place_of(daemon)),
            },
            Who::Ceiling => {
                let ceiling = self.ceiling(kind)?;
                let (sockets, id) = (join(ceiling.sockets()), ceiling.id());
                Some(format!("--ports {sockets} --client --backend-pid {id}"))
            }
        }
    }

    /// Lets one of them run, and suspends the others: a thread that polls takes a whole CPU even
    /// without frames.
    pub fn run_alone<T>(&self, who: Who, run: impl FnOnce() -> T) -> T {
        let polls = self.ovs().filter(|_| who == Who::Peer);
        if let Some(ovs) = polls {
            ovs.let_run(true);
        }
        let outcome = run();
        if let Some(ovs) = polls {
            ovs.let_run(false);
        }
        outcome
    }
}

impl Ceilings {
    fn start(cpu: usize) -> Result<Ceilings, BenchError> {
        let (polls, sleeps) = (Ceiling::start(cpu, false)?, Ceiling::start(cpu, true)?);
        Ok(Ceilings { polls, sleeps })
    }
}

impl Peer {
    /// Starts it; OVS-DPDK is suspended.
    fn start(args: &Args) -> Result<Option<Peer>, BenchError> {
        let cpu = args.worker_cpu;
        if let Some(program) = &args.against {
            let program = find(&Program::at(program))?;
            let daemon = Daemon::of_another_commit(&program, |dir| config(dir, cpu), &SOCKETS)?;
            return Ok(Some(Peer::Other(daemon)));
        }
        if args.alone || args.no_ovs {
            return Ok(None);
        }
        let ovs = Ovs::start(cpu, args.generator_cpu)?;
        ovs.let_run(false);
        Ok(Some(Peer::Ovs(ovs)))
    }
}

/// The generator's options for a daemon.
fn place_of(daemon: &Daemon) -> String {
    let sockets = join(SOCKETS.map(|name| daemon.dir().join(name)));
    format!("--ports {sockets} --client --backend-pid {}", daemon.id())
}

fn join([a, b]: [PathBuf; 2]) -> String {
    format!("{},{}", a.display(), b.display())
}

/// One worker on a CPU, two ports of two queue pairs.
fn config(dir: &Path, cpu: usize) -> String {
    let port = |name: &str| {
        let socket = dir.join(name).with_extension("sock");
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 2\n",
            socket.display()
        )
    };
    format!("[workers]\ncount = 1\ncpus = [{cpu}]\n{}{}", port("a"), port("b"))
}
