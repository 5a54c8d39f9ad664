//! The command line.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use control::config::DEFAULT_SOCKET;

/// A parallel multi-queue switch for the guests of QEMU and Xen
///
/// Carries Ethernet frames between virtual machines (vhost-user, and Xen's vifs in place of
/// xen-netback) and the host (TAP), copying each frame once, from guest to guest.
#[derive(Debug, Parser)]
#[command(name = "ringmain", version, max_term_width = 110, propagate_version = true)]
pub struct Cli {
    /// Control socket of the daemon; for serve it goes before the configuration's.
    #[arg(long, global = true, value_name = "PATH", env = "RINGMAIN_CONTROL", hide_env_values = true, help = control_help())]
    pub control: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn control_help() -> String {
    format!(
        "Control socket of the daemon; for serve it goes before the configuration's [default: {DEFAULT_SOCKET}]"
    )
}

impl Cli {
    /// Where the daemon is asked.
    pub fn socket(&self) -> PathBuf {
        self.control.clone().unwrap_or_else(|| DEFAULT_SOCKET.into())
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon, in the foreground, until SIGTERM or SIGINT
    Serve(Serve),
    /// Add, remove and look at ports of the running daemon
    #[command(subcommand)]
    Port(Port),
    /// Show the counters of the running daemon
    Stats(Stats),
    /// Show where the time of received frames goes
    Profile(Profile),
    /// Show which addresses live on which ports
    Mac(Json),
    /// Run a command as a guest: in a network namespace of its own, behind a paravirtual interface
    /// of the daemon
    Guest(Guest),
    /// Print the manual page, as roff
    #[command(hide = true)]
    Man,
}

/// `ringmain serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration, say what is wrong with it, and end
    #[arg(long)]
    pub check: bool,
    /// What to log, to standard error: error, warn, info, debug, trace, or filters such as
    /// info,control=debug
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log: String,
}

/// `ringmain guest`.
#[derive(Debug, Args)]
pub struct Guest {
    /// What the guest is called: its port is named after it
    #[arg(long, short, value_name = "NAME")]
    pub name: String,
    /// Queues of its interface, at most as many as the port allows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub queues: u16,
    /// Threads that drive the queues [default: one for each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub vcpus: Option<u16>,
    /// An IPv4 address and the length of its network's prefix, like 10.0.0.1/24
    #[arg(long, short, value_name = "ADDRESS/BITS", value_parser = prefix)]
    pub address: Option<(Ipv4Addr, u8)>,
    /// Hardware address of its interface [default: made of its name]
    #[arg(long, value_name = "ADDRESS", value_parser = mac)]
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet, in bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..=65000))]
    pub mtu: Option<u16>,
    /// Ask for a receive queue of the device that the port names (device-queue)
    #[arg(long)]
    pub device_queue: bool,
    /// One event channel for both directions of a queue, as old frontends have it [default: one
    /// for each]
    #[arg(long)]
    pub single_channel: bool,
    /// The interface's name inside
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    pub interface: String,
    /// Where guests come from [default: what the daemon says]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What to run [default: a shell]
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn prefix(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let (address, bits) = text.split_once('/').unwrap_or((text, "24"));
    let address = address.parse().map_err(|_| format!("{address:?} is not an IPv4 address"))?;
    let bits = bits.parse().ok().filter(|bits| (1..=32).contains(bits));
    Ok((address, bits.ok_or("the prefix has 1 to 32 bits")?))
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    let mac: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
    mac.filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6])
        .ok_or_else(|| "not the address of one station".into())
}

/// `ringmain port ...`.
#[derive(Debug, Subcommand)]
pub enum Port {
    /// Add a port; the other ports do not notice
    Add(Box<Add>),
    /// Remove a port; the other ports do not notice
    Remove {
        /// Name of the port
        name: String,
    },
    /// Show all ports
    List(Json),
    /// Show one port: state, negotiated features, counters of each queue, drops by reason
    Show {
        /// Name of the port
        name: String,
        #[command(flatten)]
        json: Json,
    },
}

/// `ringmain port add`: the keys of a `[[port]]` table. Values are checked by the code that reads
/// the configuration file.
#[derive(Debug, Args)]
pub struct Add {
    /// Name of the port
    pub name: String,
    /// vhost-user (a guest), tap (the host), xen (all vifs) or embedded (processes as guests)
    /// [default: tap with --device, else vhost-user]
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// vhost-user, embedded: path of the socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<String>,
    /// vhost-user: server (Ringmain listens; the default) or client (Ringmain connects, and keeps
    /// trying)
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// tap: the interface, created when absent
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Queue pairs, 1 to 16 [default: number of workers]
    #[arg(long, value_name = "N")]
    pub queues: Option<String>,
    /// The only source address that is let in
    #[arg(long, value_name = "ADDRESS")]
    pub mac: Option<String>,
    /// VLAN of an untagged port
    #[arg(long, value_name = "VLAN")]
    pub vlan: Option<String>,
    /// VLANs of a tagged port
    #[arg(long, value_name = "VLAN,...", value_delimiter = ',')]
    pub trunk: Vec<String>,
    /// Longest IP packet, in bytes
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<String>,
    /// xen, embedded: whether frames begin where copies into the receiver's pages are aligned
    /// [default: false]
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, default_missing_value = "true")]
    pub align: Option<String>,
    /// Interrupt the guest for received frames only when so many have come, or the time is over
    #[arg(long, value_name = "N")]
    pub interrupt_frames: Option<String>,
    /// Interrupt the guest for received frames at the latest so long after the first [default: at
    /// once]
    #[arg(long, value_name = "MICROSECONDS")]
    pub interrupt_microseconds: Option<String>,
    /// How workers wait for its frames: eco, balanced or latency (to compare: never, always or a
    /// time like 50us) [default: as for others]
    #[arg(long, value_name = "WORD")]
    pub polling: Option<String>,
    /// xen, embedded: pages of a guest that stay mapped at most, if it says that they come back
    /// [default: 0]
    #[arg(long, value_name = "PAGES")]
    pub cache: Option<String>,
    /// embedded: an interface whose receive queues guests can have
    #[arg(long, value_name = "NAME")]
    pub device_queue: Option<String>,
}

/// `ringmain stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// Show rates, again and again: every second, or every so many
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
    /// For how long to look
    #[arg(long, short, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    #[command(flatten)]
    pub json: Json,
}

/// How to print.
#[derive(Debug, Clone, Copy, Args)]
pub struct Json {
    /// Print JSON, with every counter
    #[arg(long)]
    pub json: bool,
}

impl Add {
    /// The flags that were given, by the keys of a `[[port]]` table.
    pub fn flags(self) -> Vec<(&'static str, Vec<String>)> {
        let kind = self
            .kind
            .unwrap_or_else(|| if self.device.is_some() { "tap" } else { "vhost-user" }.to_owned());
        let single = [
            ("name", Some(self.name)),
            ("kind", Some(kind)),
            ("socket", self.socket),
            ("mode", self.mode),
            ("device-queue", self.device_queue),
            ("device", self.device),
            ("queues", self.queues),
            ("mac", self.mac),
            ("vlan", self.vlan),
            ("mtu", self.mtu),
            ("align", self.align),
            ("interrupt-frames", self.interrupt_frames),
            ("interrupt-microseconds", self.interrupt_microseconds),
            ("polling", self.polling),
            ("cache", self.cache),
        ];
        let mut flags: Vec<_> =
            single.into_iter().filter_map(|(key, value)| Some((key, vec![value?]))).collect();
        if !self.trunk.is_empty() {
            flags.push(("trunk", self.trunk));
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_that_pages_print_exist() {
        pages::check_commands("ringmain", |words| Cli::try_parse_from(words).map(drop));
    }

    #[test]
    fn addresses_are_read() {
        assert_eq!(prefix("10.0.0.1/8"), Ok((Ipv4Addr::new(10, 0, 0, 1), 8)));
        assert_eq!(prefix("10.0.0.1"), Ok((Ipv4Addr::new(10, 0, 0, 1), 24)));
        assert!(prefix("10.0.0/8").is_err() && prefix("10.0.0.1/33").is_err());
        assert_eq!(mac("02:00:00:00:00:fe"), Ok([2, 0, 0, 0, 0, 0xfe]));
        assert!(mac("01:00:00:00:00:fe").is_err() && mac("02:00").is_err());
    }

    #[test]
    fn a_device_makes_a_tap() {
        let add = |args: &[&str]| match Cli::parse_from(
            [&["ringmain", "port", "add", "x"], args].concat(),
        )
        .command
        {
            Command::Port(Port::Add(add)) => add.flags(),
            other => panic!("{other:?}"),
        };
        let kind = |flags: Vec<(&str, Vec<String>)>| {
            flags.into_iter().find(|(key, _)| *key == "kind").unwrap().1
        };
        assert_eq!(kind(add(&["--device", "rm0"])), ["tap"]);
        assert_eq!(kind(add(&["--socket", "/x"])), ["vhost-user"]);
        let trunk = add(&["--device", "rm0", "--trunk", "1,2"]).pop().unwrap();
        assert_eq!(trunk, ("trunk", vec!["1".to_owned(), "2".to_owned()]));
    }
}
