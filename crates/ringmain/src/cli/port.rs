//! `ringmain port ...`.

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::Json;
use super::flags::{boolean, given, number};

/// `ringmain port ...`.
#[derive(Debug, Subcommand)]
pub enum Port {
    /// Add a port, without disturbing the others
    Add(Box<Add>),
    /// Remove a port, without disturbing the others
    Remove {
        /// Name of the port
        name: String,
    },
    /// Change limits, addresses and mirror of a port in service, without disturbing the others
    Set {
        /// Name of the port
        name: String,
        /// Configuration keys with their new values, like tx-rate=100Mbit budget=none. The keys are
        /// tx-rate, tx-burst, tx-frames, tx-frames-burst, the four corresponding rx keys, budget,
        /// addresses, security-groups, memory and mirror
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
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
    /// vhost-user, embedded: mode of the socket's file, like 660 [default: determined by the umask;
    /// embedded: 600]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<String>,
    /// vhost-user, embedded: owner of the socket's file, by name or number [default: the daemon's
    /// user]
    #[arg(long, value_name = "USER")]
    pub socket_owner: Option<String>,
    /// vhost-user, embedded: group of the socket's file, by name or number [default: the daemon's
    /// group]
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// tap: the interface, created when absent
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Number of queue pairs, 1 to 16 [default: number of workers]
    #[arg(long, value_name = "N")]
    pub queues: Option<String>,
    /// The only source MAC address that frames of the port may have; embedded: an address, or "own"
    /// for the address of each guest
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
    /// With --interrupt-microseconds: interrupt the guest earlier, when N received frames wait
    #[arg(long, value_name = "N")]
    pub interrupt_frames: Option<String>,
    /// Longest delay between the first received frame and its interrupt, in microseconds [default:
    /// no delay]
    #[arg(long, value_name = "MICROSECONDS")]
    pub interrupt_microseconds: Option<String>,
    /// How workers wait for the port's frames: eco, balanced or latency (for comparisons: never,
    /// always or a time like 50us) [default: workers.polling]
    #[arg(long, value_name = "WORD")]
    pub polling: Option<String>,
    /// xen, embedded: whether received frames begin at an offset that matches the source's
    /// alignment to cache lines [default: false]
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, default_missing_value = "true")]
    pub align: Option<String>,
    /// xen, embedded: maximum number of pages of a guest that stay mapped, among the pages that the
    /// guest announces as static [default: embedded 8192, xen 0]
    #[arg(long, value_name = "PAGES")]
    pub cache: Option<String>,
    /// embedded: a network card whose receive queues can be given to guests
    #[arg(long, value_name = "NAME")]
    pub device_queue: Option<String>,
    /// embedded: the side that copies the frames which guests receive, backend or guest [default:
    /// backend]
    #[arg(long, value_name = "SIDE")]
    pub copy: Option<String>,
    /// embedded: the unit in which guests grant the frames that they send, page or range [default:
    /// page; with --copy guest, range]
    #[arg(long, value_name = "EXTENT")]
    pub grants: Option<String>,
    /// Bits per second that the port may send, like 100Mbit [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub tx_rate: Option<String>,
    /// Bytes that the port may send at once after a pause, like 64KiB [default: 10 ms of --tx-rate,
    /// at least 128KiB]
    #[arg(long, value_name = "BYTES")]
    pub tx_burst: Option<String>,
    /// Frames per second that the port may send, like 50k [default: no limit]
    #[arg(long, value_name = "FRAMES")]
    pub tx_frames: Option<String>,
    /// Frames that the port may send at once after a pause [default: 10 ms of --tx-frames, at least
    /// 128]
    #[arg(long, value_name = "FRAMES")]
    pub tx_frames_burst: Option<String>,
    /// Bits per second that the port may receive [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub rx_rate: Option<String>,
    /// Bytes that the port may receive at once after a pause [default: as for --tx-burst]
    #[arg(long, value_name = "BYTES")]
    pub rx_burst: Option<String>,
    /// Frames per second that the port may receive [default: no limit]
    #[arg(long, value_name = "FRAMES")]
    pub rx_frames: Option<String>,
    /// Frames that the port may receive at once after a pause [default: as for --tx-frames-burst]
    #[arg(long, value_name = "FRAMES")]
    pub rx_frames_burst: Option<String>,
    /// The budget that the port shares with other ports: see ringmain budget
    #[arg(long, value_name = "NAME")]
    pub budget: Option<String>,
    /// The IP addresses and networks that the port's frames may claim [default: any]
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',')]
    pub addresses: Vec<String>,
    /// The security groups whose rules allow the port's connections [default: all connections]
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    pub security_groups: Vec<String>,
    /// vhost-user: limit of the guest memory that is charged to the daemon, like 512MiB [default:
    /// 16GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Name of a mirror port of kind vhost-user or tap. The mirror port gets a copy of each frame
    /// that this port sends and receives, and no other frames
    #[arg(long, value_name = "PORT")]
    pub mirror: Option<String>,
}

impl Add {
    /// The flags that were given, by the keys of a `[[port]]` table.
    pub fn flags(self) -> Map<String, Value> {
        let by_device = if self.device.is_some() { "tap" } else { "vhost-user" };
        let kind = self.kind.unwrap_or_else(|| by_device.to_owned());
        let trunk = (!self.trunk.is_empty())
            .then(|| self.trunk.into_iter().map(number).collect::<Vec<Value>>());
        let addresses = (!self.addresses.is_empty()).then(|| Value::from(self.addresses));
        let groups = (!self.security_groups.is_empty()).then(|| Value::from(self.security_groups));
        given([
            ("name", Some(self.name.into())),
            ("kind", Some(kind.into())),
            ("socket", self.socket.map(Value::from)),
            ("mode", self.mode.map(Value::from)),
            ("socket-mode", self.socket_mode.map(Value::from)),
            ("socket-owner", self.socket_owner.map(Value::from)),
            ("socket-group", self.socket_group.map(Value::from)),
            ("device", self.device.map(Value::from)),
            ("queues", self.queues.map(number)),
            ("mac", self.mac.map(Value::from)),
            ("vlan", self.vlan.map(number)),
            ("trunk", trunk.map(Value::from)),
            ("mtu", self.mtu.map(number)),
            ("interrupt-frames", self.interrupt_frames.map(number)),
            ("interrupt-microseconds", self.interrupt_microseconds.map(number)),
            ("polling", self.polling.map(Value::from)),
            ("align", self.align.map(boolean)),
            ("cache", self.cache.map(number)),
            ("device-queue", self.device_queue.map(Value::from)),
            ("copy", self.copy.map(Value::from)),
            ("grants", self.grants.map(Value::from)),
            ("tx-rate", self.tx_rate.map(Value::from)),
            ("tx-burst", self.tx_burst.map(Value::from)),
            ("tx-frames", self.tx_frames.map(Value::from)),
            ("tx-frames-burst", self.tx_frames_burst.map(Value::from)),
            ("rx-rate", self.rx_rate.map(Value::from)),
            ("rx-burst", self.rx_burst.map(Value::from)),
            ("rx-frames", self.rx_frames.map(Value::from)),
            ("rx-frames-burst", self.rx_frames_burst.map(Value::from)),
            ("budget", self.budget.map(Value::from)),
            ("addresses", addresses),
            ("security-groups", groups),
            ("memory", self.memory.map(Value::from)),
            ("mirror", self.mirror.map(Value::from)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use control::config::PortSpec;
    use serde_json::json;

    use super::super::flags::tests::assert_a_flag_for_every_key;
    use super::super::{Cli, Command};
    use super::*;

    fn add(args: &[&str]) -> Map<String, Value> {
        match Cli::parse_from([&["ringmain", "port", "add", "x"], args].concat()).command {
            Command::Port(Port::Add(add)) => add.flags(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_device_makes_a_tap() {
        assert_eq!(add(&["--device", "rm0"])["kind"], "tap");
        assert_eq!(add(&["--socket", "/x"])["kind"], "vhost-user");
        assert_eq!(add(&["--device", "rm0", "--trunk", "1,2"])["trunk"], json!([1, 2]));
        assert_eq!(add(&["--device", "rm0", "--vlan", "x"])["vlan"], "x");
    }

    /// The flags are all the keys of a `[[port]]` table, as the error about an unknown key lists
    /// them.
    #[test]
    fn every_key_of_the_file_has_a_flag() {
        let unknown = json!({ "quite-unknown": 1 });
        let error = PortSpec::from_flags(unknown.as_object().unwrap()).unwrap_err().to_string();
        assert_a_flag_for_every_key(&error, add);
    }
}
