//! The daemon: a fabric, its ports, and the control socket through which ports are added and
//! removed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::storage::engine;
use tracing::{info, warn};

use crate::api::ReloadReport;
use crate::config::Config;
use crate::config_file::ConfigFile;
use crate::confinement::Confinement;
use crate::copy_methods;
use crate::hand_over::{Incoming, TakeOver, TakeOverError};
use crate::metrics::{MetricsServer, OpenListener};
use crate::periodic::PeriodicTask;
use crate::reload::FileNames;
use crate::server::{ControlAccess, Handler, Server};
use crate::socket_file::SocketError;
use crate::state::{DaemonState, MakeEngine};

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Threads or descriptors are missing, or a CPU cannot be used.
    #[error("cannot start the workers: {0}")]
    Workers(io::Error),
    /// There is no control socket, or no listener for metrics.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The running daemon cannot be taken over.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
}

/// A running daemon. Dropping it removes its ports and sockets.
pub struct Daemon {
    // The order matters: first requests end, then maintenance, then the ports are removed.
    _metrics: Option<MetricsServer>,
    _server: Server,
    _tasks: Vec<PeriodicTask>,
    state: Arc<DaemonState>,
}

/// A probe of whether a daemon makes progress.
pub struct Probe(Arc<DaemonState>);

impl Probe {
    /// Whether all workers answer within this time. Workers that sleep are woken for it.
    pub fn workers_answer(&self, limit: Duration) -> bool {
        self.0.workers_answer(limit)
    }
}

impl Daemon {
    /// A probe of whether the daemon makes progress.
    pub fn probe(&self) -> Probe {
        Probe(Arc::clone(&self.state))
    }

    /// Starts workers, control socket and ports. A port that cannot be put into service is logged,
    /// reported as stopped, and tried again; the others are served.
    ///
    /// # Errors
    /// When workers or the control socket cannot be created. Nothing is left behind then.
    pub fn start(config: &Config) -> Result<Daemon, DaemonError> {
        Daemon::start_with(config, engine::best)
    }

    /// Like [`start`](Self::start), with `engine` for the requests of disks on each worker.
    ///
    /// # Errors
    /// As of [`Daemon::start`].
    pub fn start_with(config: &Config, engine: MakeEngine) -> Result<Daemon, DaemonError> {
        let listener = OpenListener::open(config.metrics.as_ref(), Arc::default())?;
        let state = DaemonState::new(config, None, Confinement::default(), engine);
        Daemon::serve(config, None, state, listener, None)
    }

    /// Like [`start`](Self::start), in a sandbox that this process has entered.
    ///
    /// The configuration came from `file`, which a reload reads again. `listener` was opened
    /// before.
    /// A running daemon that has agreed is taken over.
    ///
    /// # Errors
    /// As of [`Daemon::start`], and when the running daemon cannot be taken over. The
    /// running daemon continues then.
    pub fn start_confined(
        config: &Config,
        file: Option<ConfigFile>,
        confinement: Confinement,
        listener: OpenListener,
        take_over: Option<TakeOver>,
    ) -> Result<Daemon, DaemonError> {
        let user = confinement.user;
        let state = DaemonState::new(config, file, confinement, engine::best);
        Daemon::serve(config, user, state, listener, take_over)
    }

    /// Starts everything else. `user` is the user that this process has changed to, if it has.
    fn serve(
        config: &Config,
        user: Option<u32>,
        state: io::Result<DaemonState>,
        mut listener: OpenListener,
        take_over: Option<TakeOver>,
    ) -> Result<Daemon, DaemonError> {
        let refused = user.filter(|user| config.permissions.owner != Some(*user));
        let access = ControlAccess { permissions: config.permissions, refused };
        let state = Arc::new(state.map_err(DaemonError::Workers)?);
        // The locks are held until all ports and disks exist. Earlier requests wait.
        let (mut ports, mut disks) = (state.lock(), state.lock_disks());
        let handler = || Arc::clone(&state) as Arc<dyn Handler>;
        config.budgets.iter().for_each(|budget| ports.add_budget(budget.clone()));
        ports.set_security(config.security.clone());
        let (server, specs) = match take_over {
            // The server starts first, so that a second daemon, started by mistake, does not
            // disturb the first.
            None => (Server::start(&config.socket, access, handler())?, config.ports.clone()),
            Some(take_over) => {
                listener.open_path(config.metrics.as_ref())?;
                let mut incoming = take_over.receive()?;
                let others = state.take(&mut incoming, &mut ports, &config.ports)?;
                let Incoming { control, metrics, .. } = incoming;
                if let Some(metrics) = metrics {
                    listener.adopt(metrics);
                }
                (Server::adopt(&config.socket, access, control, handler())?, others)
            }
        };
        for spec in specs {
            ports.add_configured(spec);
        }
        ports.set_of_file(FileNames::of(config));
        for spec in &config.overlays {
            state.lock_overlays().add(spec.clone());
        }
        for spec in &config.disks {
            disks.add_configured(spec.clone());
        }
        drop((ports, disks));
        if let Some(spec) = &config.xen_disks {
            state.add_xen_disks(spec.clone());
        }
        let metrics = config.metrics.as_ref();
        let metrics = metrics.map(|spec| MetricsServer::start(spec, listener, handler()));
        let metrics = metrics.transpose()?;
        state.set_listeners(server.shared(), metrics.as_ref().map(MetricsServer::shared));
        let tasks = state.start_tasks().map_err(DaemonError::Workers)?;
        if config.ports.is_empty() && config.disks.is_empty() && config.xen_disks.is_none() {
            warn!("the configuration has no ports; add some with `ringmain port add`");
        }
        let (workers, ports, disks) = (config.workers, config.ports.len(), config.disks.len());
        copy_methods::choose_in_background();
        info!(workers, control = %config.socket.display(), ports, disks, "ready");
        Ok(Daemon { _metrics: metrics, _server: server, _tasks: tasks, state })
    }

    /// Sets the function that is called when another process has taken over and serves the rings.
    ///
    /// The calling thread holds locks of the daemon and keeps them: `end` must not rely on a thread
    /// that may wait for one.
    pub fn when_handed_over(&self, end: impl FnOnce() + Send + 'static) {
        self.state.set_end(Box::new(end));
    }

    /// Whether another process has taken over. From then on, this value must not be dropped:
    /// everything that it would remove belongs to the other process.
    pub fn has_handed_over(&self) -> bool {
        self.state.has_handed_over()
    }

    /// Reads the configuration file again, and applies the changes.
    ///
    /// # Errors
    /// Lines for people, when the file is wrong, or has a change that a running daemon
    /// cannot make. Nothing has changed then.
    pub fn reload(&self) -> Result<ReloadReport, String> {
        self.state.reload(false)
    }
}
