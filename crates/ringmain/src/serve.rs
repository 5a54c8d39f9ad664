//! `ringmain serve`: the daemon, in the foreground.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use control::config::{Config, Host};
use control::daemon::Daemon;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

use crate::cli::Serve;
use crate::failure::Failure;
use crate::print;

/// Runs the daemon until it is told to end. Its control socket is `control`, if that is given, and
/// otherwise the configuration's.
pub fn run(control: Option<PathBuf>, args: &Serve) -> Result<(), Failure> {
    let mut config = read(args)?;
    if let Some(socket) = control {
        config.socket = socket;
    }
    if args.check {
        return print(&format!(
            "{}: {} workers, {} ports\n",
            args.config.display(),
            config.workers,
            config.ports.len()
        ));
    }
    log(&args.log)?;
    // Before anything is created that a signal should not leave behind.
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::System { what: "catch signals", error })?;
    allow_descriptors();
    let daemon = Daemon::start(&config)?;
    let signal = signals.forever().next();
    tracing::info!(signal = %signal.and_then(signal_hook::low_level::signal_name).unwrap_or("none"), "stopping");
    insist().map_err(|error| Failure::System { what: "catch signals", error })?;
    drop(daemon);
    tracing::info!("stopped");
    Ok(())
}

fn read(args: &Serve) -> Result<Config, Failure> {
    let path = &args.config;
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::Unreadable { path: path.clone(), error })?;
    let host = Host::probe()
        .map_err(|error| Failure::System { what: "find out which CPUs there are", error })?;
    Ok(Config::parse(&path.display().to_string(), &text, &host)?)
}

/// Raises the limit of open descriptors as far as it may be raised: every ring of every port has
/// some, and the usual 1024 are used up by a few dozen ports. Without it, ports that come too late
/// are refused.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of open descriptors stays as it is");
    }
}

/// From now on, a further signal ends the process at once.
fn insist() -> io::Result<()> {
    let always = Arc::new(AtomicBool::new(true));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&always))?;
    }
    Ok(())
}

/// One line an event, to standard error. The journal has its own clock.
fn log(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|error| Failure::System {
        what: "understand --log",
        error: io::Error::other(error.to_string()),
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        subscriber.without_time().init();
    } else {
        subscriber.init();
    }
    Ok(())
}
