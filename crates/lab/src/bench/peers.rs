//! The back-ends that carry the generator's frames: the daemon, OVS-DPDK and the bare copy, each on
//! the same CPU.

use std::path::{Path, PathBuf};

use super::ceiling::Ceiling;
use super::point::{Kind, Point};
use super::tally::Who;
use super::{Args, BenchError, find};
use crate::daemon::Daemon;
use crate::ovs::Ovs;

/// All back-ends of a comparison.
pub struct Peers {
    daemon: Daemon,
    ovs: Option<Ovs>,
    ceiling: Option<Ceiling>,
}

impl Peers {
    /// Starts the back-ends that `args` name.
    ///
    /// # Errors
    /// When one is missing or does not come up.
    pub fn start(args: &Args) -> Result<Self, BenchError> {
        let binary = find(&args.program)?;
        let cpu = args.worker_cpu;
        let ovs = if args.alone || args.no_ovs {
            None
        } else {
            Some(Ovs::start(cpu, args.generator_cpu)?)
        };
        if let Some(ovs) = &ovs {
            ovs.let_run(false);
        }
        let ceiling = if args.alone { None } else { Some(Ceiling::start(cpu)?) };
        let daemon = Daemon::start(&binary, |dir| config(dir, cpu), None)?;
        Ok(Self { daemon, ovs, ceiling })
    }

    /// Version of OVS-DPDK, if it takes part.
    pub fn ovs_version(&self) -> Option<&str> {
        self.ovs.as_ref().map(Ovs::version)
    }

    /// The order of back-ends at a point: Ringmain is next to each of the others.
    pub fn of(&self, point: &Point) -> Vec<Who> {
        let bare =
            matches!(point.kind, Kind::Traffic { ceiling: true, .. }) && self.ceiling.is_some();
        [(self.ovs.is_some(), Who::Peer), (true, Who::Ringmain), (bare, Who::Ceiling)]
            .into_iter()
            .filter_map(|(takes_part, who)| takes_part.then_some(who))
            .collect()
    }

    /// The generator's options for one of them. `None`: it does not take part.
    pub fn place(&self, who: Who) -> Option<String> {
        let join = |[a, b]: [PathBuf; 2]| format!("{},{}", a.display(), b.display());
        match who {
            Who::Ringmain => {
                let sockets = ["a.sock", "b.sock"].map(|name| self.daemon.dir().join(name));
                Some(format!(
                    "--ports {} --client --backend-pid {}",
                    join(sockets),
                    self.daemon.id()
                ))
            }
            Who::Peer => {
                let ovs = self.ovs.as_ref()?;
                Some(format!("--ports {} --server --backend-pid {}", join(ovs.sockets()), ovs.id()))
            }
            // The bare copy is a thread of this process, like the generator.
            Who::Ceiling => {
                Some(format!("--ports {} --client", join(self.ceiling.as_ref()?.sockets())))
            }
        }
    }

    /// Lets one of them run, and suspends the others: a thread that polls takes a whole CPU even
    /// without frames.
    pub fn run_alone<T>(&self, who: Who, run: impl FnOnce() -> T) -> T {
        let polls = self.ovs.as_ref().filter(|_| who == Who::Peer);
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
