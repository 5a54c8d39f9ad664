//! `ringmain serve`: the daemon, in the foreground.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use control::config::{Config, Host, Others};
use control::config_file::ConfigFile;
use control::daemon::{Daemon, DaemonError};
use control::events::RecentEvents;
use control::hand_over::TakeOver;
use control::metrics::OpenListener;
use control::preflight;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use tracing::{error, info, warn};

use crate::cli::Serve;
use crate::failure::Failure;
use crate::notify::Notifier;
use crate::output::print;
use crate::{confine, log, units};

/// The time that the main thread has to end a process that another one has taken over.
const GRACE: Duration = Duration::from_secs(1);

/// Runs the daemon until it is told to end. `control` overrides the control socket of the
/// configuration.
pub fn run(control: Option<PathBuf>, args: &Serve) -> Result<(), Failure> {
    let host = Host::probe()
        .map_err(|error| Failure::System { what: "find out which CPUs there are", error })?;
    let file = ConfigFile::new(&args.config, control, host);
    let text = file.read()?;
    let config = file.parse(&text, &Others::default())?;
    if args.check {
        return check(&args.config, &text, &config);
    }
    let events = Arc::new(RecentEvents::default());
    let dashboard = config.metrics.as_ref().is_some_and(|metrics| metrics.dashboard);
    log::start(&args.log, args.log_format, dashboard.then(|| Arc::clone(&events)))?;
    // Signals are handled before anything is created that a signal should not leave behind.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::System { what: "catch signals", error })?;
    raise_descriptor_limit();
    let manager = Notifier::connect();
    // The take-over begins before the sandbox, in which the running daemon's socket may be out of
    // reach.
    let take_over = args.take_over.then(|| TakeOver::begin(&config)).transpose();
    let take_over = take_over.map_err(DaemonError::from)?;
    let metrics = match &take_over {
        Some(take_over) if take_over.has_metrics_of(&config) => OpenListener::to_come(events),
        _ => OpenListener::open(config.metrics.as_ref(), events).map_err(DaemonError::from)?,
    };
    // The sandbox is entered before any thread starts: threads inherit it.
    let confinement = match config.sandbox.enabled && !args.no_sandbox {
        true => confine::enter(&config, &args.config),
        false => confine::go_without(),
    };
    let _log = log::LogWriter::start()
        .map_err(|error| Failure::System { what: "start the thread of the log", error })?;
    let takes_over = take_over.is_some();
    let daemon = Daemon::start_confined(&config, Some(file), confinement, metrics, take_over)?;
    if takes_over {
        // The service manager knows the process that was taken over.
        manager.notify(&format!("MAINPID={}", std::process::id()));
    }
    manager.notify("READY=1");
    let handle = signals.handle();
    daemon.when_handed_over(move || {
        handle.close();
        // The main thread now ends the process, unless a reload makes it wait for a lock.
        std::thread::sleep(GRACE);
        std::process::exit(0);
    });
    let watchdog = manager
        .watch(daemon.probe())
        .map_err(|error| Failure::System { what: "start the watchdog", error })?;
    wait_for_the_end(&mut signals, &daemon);
    if daemon.has_handed_over() {
        // No part of the daemon may be dropped: sockets and rings belong to another process.
        std::mem::forget(daemon);
        return Ok(());
    }
    manager.notify("STOPPING=1");
    drop(watchdog);
    end_at_the_next_signal().map_err(|error| Failure::System { what: "catch signals", error })?;
    drop(daemon);
    info!("stopped");
    Ok(())
}

/// `ringmain serve --check`.
fn check(path: &Path, text: &str, config: &Config) -> Result<(), Failure> {
    let says_something =
        |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    if !text.lines().any(says_something) {
        return Err(Failure::Empty(path.to_owned()));
    }
    let problems = preflight::check(config);
    if !problems.is_empty() {
        let place = |problem: String| format!("{}: {problem}", path.display());
        return Err(Failure::Host(problems.into_iter().map(place).collect()));
    }
    print(&format!(
        "{}: {}, {}\n",
        path.display(),
        units::count(config.workers as u64, "worker"),
        match config.disks.len() as u64 {
            0 => units::count(config.ports.len() as u64, "port"),
            disks => format!(
                "{}, {}",
                units::count(config.ports.len() as u64, "port"),
                units::count(disks, "disk")
            ),
        }
    ))
}

/// Waits for a signal that ends the daemon, or for a take-over by another process. SIGHUP reloads
/// the configuration.
fn wait_for_the_end(signals: &mut Signals, daemon: &Daemon) {
    for signal in signals.forever() {
        let name = signal_name(signal).unwrap_or("unknown");
        if signal != SIGHUP {
            info!(signal = name, "stopping");
            return;
        }
        info!(signal = name, "reloading the configuration");
        if let Err(reasons) = daemon.reload() {
            for reason in reasons.lines() {
                error!(reason, "the configuration is not reloaded, and nothing has changed");
            }
        }
    }
}

/// Raises the limit of open descriptors as far as allowed.
///
/// Every ring of every port has some, so a few dozen ports use up the usual 1024. Further ports
/// would be refused.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!(reason = %error, "cannot raise the limit of open descriptors");
    }
}

/// Makes a further signal end the process at once.
fn end_at_the_next_signal() -> io::Result<()> {
    let always = Arc::new(AtomicBool::new(true));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&always))?;
    }
    Ok(())
}
