//! The daemon: a fabric, the ports that are on it, and the control socket that lets them come and
//! go.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use network::balance::{self, Balancer};
use network::fabric::{Fabric, Workers};
use serde_json::{Map, Value as Json};
use switch::{Limits, PortId};
use tracing::{info, warn};

use crate::api::{Counts, PortReport, Profile, Reply, Request};
use crate::config::{Config, PortKind, PortSpec};
use crate::link::{Link, LinkError, Vif};
use crate::profile::{Profiler, Subject};
use crate::report;
use crate::server::{Answers, Server, ServerError};

/// How often silent stations are looked for.
const ROUND: Duration = Duration::from_secs(2);

/// Longest profile, in seconds.
const LONGEST: u32 = 3600;

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Threads or descriptors are missing, or a CPU cannot be used.
    #[error("cannot start the workers: {0}")]
    Workers(io::Error),
    /// The control socket cannot be had.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A port of the configuration cannot be had.
    #[error("port {name:?}: {error}")]
    Port {
        /// Its name.
        name: String,
        /// Why.
        error: LinkError,
    },
}

/// A running daemon. Dropping it removes its ports and sockets.
pub struct Daemon {
    // The order matters: first nobody asks any more, then nobody looks after the ports, then they
    // go.
    _server: Server,
    _rounds: Vec<Round>,
    _house: Arc<House>,
}

impl Daemon {
    /// Starts workers, control socket and ports. Nothing stays behind when one of them fails.
    ///
    /// # Errors
    /// Says what could not be had.
    pub fn start(config: &Config) -> Result<Daemon, DaemonError> {
        let house = Arc::new(House::new(config)?);
        // Held until all ports are there: whoever asks before that waits.
        let mut ports = house.lock();
        // First of all, so that a second daemon by mistake disturbs nothing of the first.
        let server = Server::start(&config.socket, Arc::clone(&house) as Arc<dyn Answers>)?;
        for spec in &config.ports {
            let added = house.add(&mut ports, spec.clone());
            if let Err(error) = added {
                // The server waits for those who wait for the lock.
                drop(ports);
                return Err(DaemonError::Port { name: spec.name.clone(), error });
            }
        }
        drop(ports);
        let rounds = house.rounds().map_err(DaemonError::Workers)?;
        info!(workers = config.workers, control = %config.socket.display(), ports = config.ports.len(), "ready");
        Ok(Daemon { _server: server, _rounds: rounds, _house: house })
    }
}

/// What the threads of the daemon share.
struct House {
    state: Mutex<State>,
    fabric: Arc<Fabric>,
    config: Setup,
    profiler: Profiler,
    balancer: Mutex<Balancer>,
    started: Instant,
}

/// The part of the configuration that stays.
struct Setup {
    workers: usize,
    cpus: Vec<u16>,
    balance: bool,
    socket: PathBuf,
}

#[derive(Default)]
struct State {
    ports: BTreeMap<String, Port>,
    /// What was counted on ports that are gone.
    removed: Counts,
}

impl State {
    /// Adds what was counted on vifs that are gone, and does `work` with all ports and that sum
    /// before another can go: so nothing is counted twice, or not at all.
    fn with_gone<T>(&mut self, work: impl FnOnce(&BTreeMap<String, Port>, &Counts) -> T) -> T {
        let State { ports, removed } = self;
        let mut held: Vec<_> = ports.values().filter_map(|port| port.link.gone()).collect();
        for queue in held.iter_mut().flat_map(|gone| gone.drain(..)) {
            removed.add(&report::counts(&queue));
        }
        work(ports, removed)
    }
}

/// A port that is there.
struct Port {
    spec: PortSpec,
    link: Link,
    /// Whether its failure was logged.
    told: bool,
}

impl House {
    fn new(config: &Config) -> Result<House, DaemonError> {
        let workers = Workers {
            count: config.workers,
            cpus: config.cpus.iter().map(|cpu| usize::from(*cpu)).collect(),
            limits: Limits::default(),
            policy: config.policy,
        };
        let fabric = Arc::new(Fabric::start(&workers).map_err(DaemonError::Workers)?);
        let Config { workers, cpus, balance, socket, .. } = config.clone();
        let config = Setup { workers, cpus, balance, socket };
        let (state, balancer) = (Mutex::default(), Mutex::default());
        Ok(House {
            fabric,
            config,
            profiler: Profiler::new(),
            balancer,
            started: Instant::now(),
            state,
        })
    }

    /// The threads that look after it.
    fn rounds(self: &Arc<Self>) -> io::Result<Vec<Round>> {
        let house = Arc::clone(self);
        let mut rounds = vec![Round::start("rm-round", ROUND, move || house.look_around())?];
        if self.config.balance && self.config.workers > 1 {
            let house = Arc::clone(self);
            rounds.push(Round::start("rm-balance", balance::INTERVAL, move || house.balance())?);
        }
        Ok(rounds)
    }

    /// Lets queue pairs change workers.
    fn balance(&self) {
        // Not kept while it moves: whoever asks for counters would have to wait.
        let advice = self.fabric.advice(&mut self.balancer());
        if let Some(advice) =
            advice.filter(|advice| self.fabric.move_queue(advice.queue, advice.to))
        {
            info!(worker = advice.to, "a queue pair has moved to a worker that is less busy");
        }
    }

    fn balancer(&self) -> MutexGuard<'_, Balancer> {
        self.balancer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, state: &mut State, spec: PortSpec) -> Result<(), LinkError> {
        let link = Link::start(&self.fabric, &spec, self.config.workers)?;
        let queues = spec.queue_pairs(self.config.workers);
        info!(port = %spec.name, kind = %spec.kind.name(), queues, "added");
        state.ports.insert(spec.name.clone(), Port { spec, link, told: false });
        Ok(())
    }

    fn add_requested(&self, object: &Map<String, Json>) -> Result<Reply, String> {
        let mut state = self.lock();
        let there = state.ports.values().map(|port| &port.spec);
        let spec = PortSpec::from_request(object, there, &self.config.socket)
            .map_err(|error| error.to_string())?;
        let name = spec.name.clone();
        self.add(&mut state, spec).map_err(|error| format!("port {name:?}: {error}"))?;
        Ok(Reply::Done)
    }

    fn remove(&self, name: &str) -> Result<Reply, String> {
        let mut state = self.lock();
        let Some(port) = state.ports.remove(name) else {
            let mut vifs = state.ports.iter().flat_map(|(own, port)| port.link.vifs(own));
            return Err(match vifs.find(|vif| vif.name == name) {
                Some(Vif { kind: "xen", .. }) => {
                    format!("{name} goes when the toolstack takes it away (xl network-detach)")
                }
                Some(_) => format!("{name} goes when its guest does"),
                None => unknown(name),
            });
        };
        for queue in port.link.end(&self.fabric) {
            state.removed.add(&report::counts(&queue));
        }
        if !matches!(port.spec.kind, PortKind::VhostUser { .. }) {
            // A vhost-user port says so itself.
            info!(port = %name, "removed");
        }
        Ok(Reply::Done)
    }

    /// A port, and the vifs that it stands for.
    fn reports(&self, port: &Port) -> Vec<PortReport> {
        let own = report::port(&self.fabric, &port.spec, &port.link, self.config.workers);
        let vifs = port.link.vifs(&port.spec.name);
        let vifs = vifs.iter().map(|vif| report::vif(&self.fabric, vif, &own));
        let vifs: Vec<PortReport> = vifs.collect();
        std::iter::once(own).chain(vifs).collect()
    }

    /// All ports, by name, and what was counted on those that are gone.
    fn all(&self) -> (Vec<PortReport>, Counts) {
        let mut state = self.lock();
        let (mut all, removed) = state.with_gone(|ports, removed| {
            (
                ports.values().flat_map(|port| self.reports(port)).collect::<Vec<_>>(),
                removed.clone(),
            )
        });
        drop(state);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        (all, removed)
    }

    fn show(&self, name: &str) -> Result<Reply, String> {
        let port =
            self.all().0.into_iter().find(|port| port.name == name).ok_or_else(|| unknown(name))?;
        Ok(Reply::Port(Box::new(port)))
    }

    fn stats(&self) -> Reply {
        let (ports, removed) = self.all();
        let loads = self.balancer().loads().to_vec();
        let basics =
            report::Basics { cpus: &self.config.cpus, loads: &loads, started: self.started };
        Reply::Stats(Box::new(report::stats(&self.fabric, basics, ports, removed)))
    }

    fn macs(&self) -> Reply {
        let state = self.lock();
        let mut names: HashMap<PortId, String> = HashMap::new();
        for (name, port) in &state.ports {
            names.extend(port.link.id().map(|id| (id, name.clone())));
            let vifs = port.link.vifs(name).into_iter();
            names.extend(vifs.filter_map(|vif| Some((vif.status.port?, vif.name))));
        }
        Reply::Macs(report::macs(&self.fabric.table(), &names))
    }

    /// Where time went so far; it is counted for another while.
    fn profile(&self, time: Duration) -> Reply {
        let (number, since) = {
            // Of several at once, each has a number of its own, and the last one counts.
            let mut lease = self.profiler.lock();
            let number = lease.prolong(time);
            self.fabric.sample(number);
            (number, lease.since())
        };
        let nanoseconds = self.profiler.moment();
        let workers = self.profiler.workers(&self.fabric);
        let report = |subject: Subject| {
            let queues = self.fabric.counters(subject.port);
            self.profiler.port(subject, &queues, since)
        };
        let mut ports: Vec<_> = self.subjects(number).into_iter().map(report).collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        Reply::Profile(Box::new(Profile { nanoseconds, workers, ports }))
    }

    /// All ports that may receive frames, and what their guests say when they are asked under this
    /// number.
    fn subjects(&self, number: u64) -> Vec<Subject> {
        let state = self.lock();
        let all = state
            .ports
            .iter()
            .flat_map(|(name, port)| port.link.subjects(name, port.spec.kind.name(), number));
        all.collect()
    }

    /// Ends what nobody wants to know any more.
    fn end_profile(&self) {
        let mut lease = self.profiler.lock();
        if lease.ends() {
            self.fabric.sample(0);
            self.subjects(0);
        }
    }

    /// What has to be looked at now and then.
    fn look_around(&self) {
        self.fabric.age();
        self.end_profile();
        let mut state = self.lock();
        // So that they do not become many.
        state.with_gone(|_, _| ());
        for (name, port) in &mut state.ports {
            if let Some(reason) = port.link.failure()
                && !std::mem::replace(&mut port.told, true)
            {
                warn!(port = %name, %reason, "stopped");
            }
        }
    }
}

impl Answers for House {
    fn answer(&self, request: Request) -> Result<Reply, String> {
        match request {
            Request::PortAdd { port } => self.add_requested(&port),
            Request::PortRemove { name } => self.remove(&name),
            Request::PortList => Ok(Reply::Ports(self.all().0)),
            Request::PortShow { name } => self.show(&name),
            Request::Stats => Ok(self.stats()),
            Request::Mac => Ok(self.macs()),
            Request::Profile { seconds } => {
                Ok(self.profile(Duration::from_secs(seconds.min(LONGEST).into())))
            }
        }
    }
}

fn unknown(name: &str) -> String {
    format!("there is no port {name:?}; `ringmain port list` shows those that are there")
}

/// A thread that does something again and again, until it is dropped.
struct Round {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Round {
    fn start(name: &str, every: Duration, work: impl Fn() + Send + 'static) -> io::Result<Round> {
        let (stop, stopped) = mpsc::channel();
        let thread = Builder::new().name(name.into()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                work();
            }
        })?;
        Ok(Round { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
