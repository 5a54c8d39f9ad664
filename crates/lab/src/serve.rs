//! `ringmain-lab serve`: a daemon like that of `ringmain serve`, whose embedded hypervisor may have
//! one of Xen's older inner designs, and whose disks may carry nothing out. These are for
//! comparison only, so no configuration names them.

use std::io;
use std::path::PathBuf;

use control::config::{Config, ConfigErrors, Host, PortKind};
use control::daemon::{Daemon, DaemonError};
use hypervisor::embedded::{Copying, Design, Flush, Locking, Maptrack, Named};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::null_engine::NullEngine;

/// Options of the daemon.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file, as for ringmain serve
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// How grant tables are locked: table, entries or per-cpu
    #[arg(long, value_name = "HOW", default_value = "per-cpu", value_parser = named::<Locking>)]
    pub locking: Locking,

    /// Where handles of mappings come from: single, per-vcpu or stealing
    #[arg(long, value_name = "WHERE", default_value = "stealing", value_parser = named::<Maptrack>)]
    pub maptrack: Maptrack,

    /// When TLBs are flushed after unmapping: always, batch or touched
    #[arg(long, value_name = "WHEN", default_value = "touched", value_parser = named::<Flush>)]
    pub flush: Flush,

    /// How long a batch of copies holds a page: release (for one copy) or keep (for the whole
    /// batch)
    #[arg(long, value_name = "HOW", default_value = "keep", value_parser = named::<Copying>)]
    pub copying: Copying,

    /// Complete disk requests without executing them: reads return no data, and writes are lost
    #[arg(long)]
    pub null_disks: bool,
}

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The daemon does not start.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The configuration cannot be read, or signals cannot be handled.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

fn named<T: Named>(name: &str) -> Result<T, String> {
    let all: Vec<&str> = T::ALL.iter().map(|(name, _)| *name).collect();
    T::of(name).ok_or_else(|| format!("give {}", all.join(" or ")))
}

/// The options that select a design.
pub fn options(design: Design) -> [String; 4] {
    [
        format!("--locking={}", design.locking.name()),
        format!("--maptrack={}", design.maptrack.name()),
        format!("--flush={}", design.flush.name()),
        format!("--copying={}", design.copying.name()),
    ]
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// See [`ServeError`].
pub fn run(args: &Args) -> Result<(), ServeError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| ServeError::System { what, source }
    };
    let path = args.config.display().to_string();
    let text = std::fs::read_to_string(&args.config).map_err(failed(&format!("read {path}")))?;
    let host = Host::probe().map_err(failed("find out which CPUs there are"))?;
    let mut config = Config::parse(&path, &text, &host)?;
    let Args { locking, maptrack, flush, copying, .. } = *args;
    for port in &mut config.ports {
        if let PortKind::Embedded { design, .. } = &mut port.kind {
            *design = Design { locking, maptrack, flush, copying };
        }
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed("handle signals"))?;
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_target(false).init();
    let engine = if args.null_disks { NullEngine::boxed } else { storage::engine::best };
    let _daemon = Daemon::start_with(&config, engine)?;
    signals.forever().next();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_options_of_a_design_select_it() {
        for design in Design::all() {
            let words = ["serve", "--config", "x"].into_iter().map(str::to_owned);
            let args = Line::parse_from(words.chain(options(design))).args;
            let Args { locking, maptrack, flush, copying, .. } = args;
            assert_eq!(Design { locking, maptrack, flush, copying }, design);
        }
    }
}
