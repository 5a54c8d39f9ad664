//! The command line.

mod budget;
mod capture;
mod disk;
mod flags;
mod guest;
mod overlay;
mod port;
mod rules;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use control::config::{DEFAULT_FILE, DEFAULT_SOCKET};

pub use budget::Budget;
pub use capture::Capture;
pub use disk::Disk;
pub use guest::Guest;
pub use overlay::{Overlay, Which};
pub use port::Port;
pub use rules::Rules;

/// The environment's variable that gives the control socket.
const CONTROL_VARIABLE: &str = "RINGMAIN_CONTROL";

/// A parallel multi-queue switch for the guests of QEMU and Xen
///
/// Carries Ethernet frames between virtual machines (vhost-user, and Xen's vifs in place of
/// xen-netback) and the host (TAP), copying each frame once, from guest to guest. Serves disks to
/// virtual machines (vhost-user, and Xen's vbds).
#[derive(Debug, Parser)]
#[command(name = "ringmain", version, max_term_width = 110, propagate_version = true)]
pub struct Cli {
    /// Control socket of the daemon.
    #[arg(long, global = true, value_name = "PATH", help = control_help())]
    control: Option<PathBuf>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

fn control_help() -> String {
    format!(
        "Control socket of the daemon; with serve, overrides control.socket of the configuration \
         [env: {CONTROL_VARIABLE}] [default: {DEFAULT_SOCKET}]"
    )
}

impl Cli {
    /// The control socket that the command or its environment gives. The variable is not read by
    /// clap, whose usage errors would list the option as required then.
    pub fn control(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os(CONTROL_VARIABLE).filter(|path| !path.is_empty());
        self.control.clone().or_else(|| variable().map(PathBuf::from))
    }

    /// The control socket of the running daemon.
    pub fn socket(&self) -> PathBuf {
        self.control().unwrap_or_else(|| DEFAULT_SOCKET.into())
    }
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon, in the foreground, until SIGTERM or SIGINT
    Serve(Serve),
    /// Read the configuration file again, and apply its changes to the running daemon
    Reload(Reload),
    /// Wait until a daemon answers
    Wait(Wait),
    /// Add, change, remove and show ports of the running daemon
    #[command(subcommand)]
    Port(Port),
    /// Add, change, remove and show budgets: rates that several ports share
    #[command(subcommand)]
    Budget(Budget),
    /// Add, change, remove and show disks of the running daemon
    #[command(subcommand)]
    Disk(Disk),
    /// Show and test the security-group rules of ports
    #[command(subcommand)]
    Rules(Rules),
    /// Show overlays: virtual networks that reach other hosts through tunnels
    #[command(subcommand)]
    Overlay(Overlay),
    /// Show the counters of the running daemon
    Stats(Stats),
    /// Show where the time of received frames goes
    Profile(Profile),
    /// Capture the frames that ports send and receive, as pcapng, for Wireshark and tcpdump
    Capture(Capture),
    /// Show the address table: MAC addresses, and the port of each
    Mac(Json),
    /// Run a command as a guest: in its own network namespace, with a paravirtual interface of the
    /// daemon
    Guest(Guest),
    /// Print a script that completes this command line in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, as roff
    Man,
}

/// `ringmain serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub config: PathBuf,
    /// Check the configuration, and check that this host has the devices and files that the
    /// configuration names; print all problems, and exit
    #[arg(long)]
    pub check: bool,
    /// Take over the guests, sockets and TAPs of the running daemon, without a disconnection
    #[arg(long, conflicts_with = "check")]
    pub take_over: bool,
    /// Run without the sandbox, with all rights of the user that starts the daemon. Use this option
    /// only to find faults
    #[arg(long)]
    pub no_sandbox: bool,
    /// Level of the log on standard error: error, warn, info, debug or trace; or filters such as
    /// info,control=debug
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log: String,
    /// Format of the log [default: journal if standard error is the journal, else text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// How to log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// Lines of text
    Text,
    /// One JSON object per line
    Json,
    /// Lines that begin with a priority for the journal, as sd-daemon(3) describes
    Journal,
}

/// `ringmain reload`.
#[derive(Debug, Args)]
pub struct Reload {
    /// Print the changes without applying them
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub json: Json,
}

/// `ringmain wait`.
#[derive(Debug, Args)]
pub struct Wait {
    /// Longest time to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
}

/// `ringmain stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// Show rates every second, or every SECONDS seconds
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub watch: Option<u64>,
    /// Only this port
    #[arg(long, short, value_name = "NAME")]
    pub port: Option<String>,
    #[command(flatten)]
    pub json: Json,
}

/// `ringmain profile`.
#[derive(Debug, Args)]
pub struct Profile {
    /// Only this port
    #[arg(value_name = "PORT")]
    pub port: Option<String>,
    /// Length of the profile, in seconds
    #[arg(long, short, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    #[command(flatten)]
    pub json: Json,
}

/// How to print.
#[derive(Debug, Clone, Copy, Args)]
pub struct Json {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_as_pages_print_it() {
        pages::check_command_line::<Cli>("ringmain");
    }

    #[test]
    fn serve_has_a_default_file() {
        let Command::Serve(serve) = Cli::parse_from(["ringmain", "serve"]).command else {
            panic!()
        };
        assert_eq!(serve.config, PathBuf::from("/etc/ringmain/ringmain.toml"));
    }
}
