//! The back-ends that carry the generator's frames: the daemon, OVS-DPDK and the bare copy, or the
//! daemon of another commit, each on the same CPU.

use std::path::{Path, PathBuf};

use super::ceiling::Ceiling;
use super::point::{Kind, Point, Site, Waiting};
use super::tally::Who;
use super::{Args, BenchError, find};
use crate::daemon::{Daemon, DaemonError};
use crate::guest::Namespace;
use crate::ovs::Ovs;
use crate::program::Program;

/// All back-ends of a comparison.
pub struct Peers {
    site: Site,
    daemon: Served,
    peer: Option<Peer>,
    ceilings: Option<Ceilings>,
}

/// A daemon, and the network of its TAP, if it has one.
struct Served {
    daemon: Daemon,
    network: Option<Namespace>,
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
    Other(Served),
}

/// The name of the TAP, in the network of each back-end.
const TAP: &str = "rm-tap";

/// The name of the daemon's port for a guest, by number.
fn port(number: usize) -> String {
    format!("guest-{number}")
}

/// The name of the port's socket.
fn socket(number: usize) -> String {
    port(number) + ".sock"
}

impl Peers {
    /// Starts the back-ends that `args` name, with ports for this site.
    ///
    /// # Errors
    /// When one is missing or does not come up.
    pub fn start(args: &Args, site: Site) -> Result<Self, BenchError> {
        let binary = find(&args.program)?;
        let cpu = args.worker_cpu;
        let peer = Peer::start(args, site)?;
        let no_ceiling = args.alone || args.against.is_some() || site != Site::PAIR;
        let ceilings = if no_ceiling { None } else { Some(Ceilings::start(cpu)?) };
        let daemon = Served::start(site, |network| {
            Daemon::start(&binary, |dir| config(dir, cpu, site), network)
        })?;
        Ok(Self { site, daemon, peer, ceilings })
    }

    fn ovs(&self) -> Option<&Ovs> {
        match &self.peer {
            Some(Peer::Ovs(ovs)) => Some(ovs),
            Some(Peer::Other(_)) | None => None,
        }
    }

    /// The network in which the generator has to run.
    pub fn network(&self, who: Who) -> Option<&Namespace> {
        match (who, &self.peer) {
            _ if !self.site.tap => None,
            (Who::Ringmain, _) => self.daemon.network.as_ref(),
            (Who::Peer, Some(Peer::Ovs(ovs))) => Some(ovs.network()),
            (Who::Peer, Some(Peer::Other(other))) => other.network.as_ref(),
            _ => None,
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
            Who::Ringmain => Some(self.place_of(&self.daemon.daemon)),
            Who::Peer => match self.peer.as_ref()? {
                Peer::Ovs(ovs) => {
                    let sockets = join(&ovs.sockets());
                    let from = self.from();
                    Some(format!("--ports {sockets} {from} --server --backend-pid {}", ovs.id()))
                }
                Peer::Other(other) => Some(self.place_of(&other.daemon)),
            },
            Who::Ceiling => {
                let ceiling = self.ceiling(kind)?;
                let (sockets, id) = (join(&ceiling.sockets()), ceiling.id());
                Some(format!("--ports {sockets} --client --backend-pid {id}"))
            }
        }
    }

    /// The generator's options for a daemon.
    fn place_of(&self, daemon: &Daemon) -> String {
        let sockets = (0..self.site.guests).map(|number| daemon.dir().join(socket(number)));
        let sockets = join(&sockets.collect::<Vec<_>>());
        format!("--ports {sockets} {} --client --backend-pid {}", self.from(), daemon.id())
    }

    /// The generator's option for the source of frames.
    fn from(&self) -> String {
        if self.site.tap { format!("--from {TAP}") } else { String::new() }
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

impl Served {
    /// Starts a daemon, in a network of its own if it is to have a TAP.
    fn start(
        site: Site,
        start: impl FnOnce(Option<&Namespace>) -> Result<Daemon, DaemonError>,
    ) -> Result<Served, BenchError> {
        let network = site.tap.then(Namespace::new).transpose()?;
        Ok(Served { daemon: start(network.as_ref())?, network })
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
    fn start(args: &Args, site: Site) -> Result<Option<Peer>, BenchError> {
        let cpu = args.worker_cpu;
        if let Some(program) = &args.against {
            let program = find(&Program::at(program))?;
            let config = |dir: &Path| config(dir, cpu, site);
            let sockets: Vec<String> = (0..site.guests).map(socket).collect();
            let start = |network: Option<&Namespace>| {
                Daemon::of_another_commit(&program, config, network, &sockets)
            };
            return Ok(Some(Peer::Other(Served::start(site, start)?)));
        }
        if args.alone || args.no_ovs {
            return Ok(None);
        }
        let tap = site.tap.then_some(TAP);
        let ovs = Ovs::start((site.guests, tap), cpu, args.generator_cpu)?;
        ovs.let_run(false);
        Ok(Some(Peer::Ovs(ovs)))
    }
}

fn join(sockets: &[PathBuf]) -> String {
    sockets.iter().map(|socket| socket.display().to_string()).collect::<Vec<_>>().join(",")
}

/// One worker on a CPU, ports of two queue pairs, and the TAP, if there is to be one.
fn config(dir: &Path, cpu: usize, site: Site) -> String {
    let table = |number: usize| {
        let (name, socket) = (port(number), dir.join(socket(number)));
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 2\n",
            socket.display()
        )
    };
    let mut tables: String = (0..site.guests).map(table).collect();
    if site.tap {
        tables += &format!("[[port]]\nname = \"tap\"\nkind = \"tap\"\ndevice = \"{TAP}\"\n");
    }
    format!("[workers]\ncount = 1\ncpus = [{cpu}]\n{tables}")
}
