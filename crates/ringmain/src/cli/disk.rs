//! `ringmain disk ...`.

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::Json;
use super::flags::{boolean, given, number};

/// `ringmain disk ...`.
#[derive(Debug, Subcommand)]
pub enum Disk {
    /// Add a disk, without disturbing ports and other disks
    Add(Box<AddDisk>),
    /// Remove a disk, without disturbing ports and other disks
    Remove {
        /// Name of the disk
        name: String,
    },
    /// Change limits of a disk in service, without disturbing ports and other disks
    Set {
        /// Name of the disk, or of the configuration entry for all disks of Xen guests
        name: String,
        /// Configuration keys with their new values, like iops=20k bandwidth=none. The keys are
        /// iops, iops-burst, bandwidth, bandwidth-burst and memory
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
    },
    /// Show all disks
    List(Json),
    /// Show one disk: state, image, negotiated features, counters of each queue, errors by reason
    Show {
        /// Name of the disk
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Change the length of a disk's image, and notify the guest
    Resize {
        /// Name of the disk
        name: String,
        /// The new length in bytes, or with a unit, like 20G (20 * 2^30 bytes) [default: the
        /// present length of the image, for a block device that has grown]
        #[arg(value_parser = size)]
        size: Option<u64>,
    },
}

/// `ringmain disk add`: the keys of a `[[disk]]` table. Values are checked by the code that reads
/// the configuration file.
#[derive(Debug, Args)]
pub struct AddDisk {
    /// Name of the disk
    pub name: String,
    /// Kind of the interface for guests: vhost-user
    #[arg(long, value_name = "KIND", default_value = "vhost-user")]
    pub kind: String,
    /// Path of the socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<String>,
    /// Mode of the socket's file, like 660 [default: determined by the umask]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<String>,
    /// Owner of the socket's file, by name or number [default: the daemon's user]
    #[arg(long, value_name = "USER")]
    pub socket_owner: Option<String>,
    /// Group of the socket's file, by name or number [default: the daemon's group]
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// The image: a file or a block device
    #[arg(long, value_name = "PATH")]
    pub image: Option<String>,
    /// Format of the image: raw or qcow2; the daemon never guesses [default: raw]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Number of queues, 1 to 16 [default: 16]
    #[arg(long, value_name = "N")]
    pub queues: Option<String>,
    /// Whether guests may only read [default: false]
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, default_missing_value = "true")]
    pub read_only: Option<String>,
    /// Whether to bypass the host's page cache: auto, on or off [default: auto]
    #[arg(long, value_name = "WORD")]
    pub direct: Option<String>,
    /// Block size in bytes, 512 or 4096 [default: the block size of the device; for a file, 512]
    #[arg(long, value_name = "BYTES")]
    pub sector_size: Option<String>,
    /// Serial number, at most 20 characters [default: the name]
    #[arg(long, value_name = "TEXT")]
    pub serial: Option<String>,
    /// How workers wait for the disk's requests: eco, balanced or latency [default:
    /// workers.polling]
    #[arg(long, value_name = "WORD")]
    pub polling: Option<String>,
    /// For the configuration file only: the daemon refuses this flag
    #[arg(long, hide = true, value_delimiter = ',')]
    pub images: Vec<String>,
    /// Requests per second, like 20k [default: no limit]
    #[arg(long, value_name = "REQUESTS")]
    pub iops: Option<String>,
    /// Requests that may begin at once after a pause [default: 10 ms of --iops, at least 128]
    #[arg(long, value_name = "REQUESTS")]
    pub iops_burst: Option<String>,
    /// Bytes per second, like 200MB [default: no limit]
    #[arg(long, value_name = "BYTES")]
    pub bandwidth: Option<String>,
    /// Bytes that may be transferred at once after a pause [default: 10 ms of --bandwidth, at least
    /// 1MiB]
    #[arg(long, value_name = "BYTES")]
    pub bandwidth_burst: Option<String>,
    /// Limit of the guest memory that is charged to the daemon, like 512MiB [default: three
    /// quarters of the host's memory]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
}

impl AddDisk {
    /// The flags that were given, by the keys of a `[[disk]]` table.
    pub fn flags(self) -> Map<String, Value> {
        let images = (!self.images.is_empty()).then(|| Value::from(self.images));
        given([
            ("name", Some(self.name.into())),
            ("kind", Some(self.kind.into())),
            ("socket", self.socket.map(Value::from)),
            ("socket-mode", self.socket_mode.map(Value::from)),
            ("socket-owner", self.socket_owner.map(Value::from)),
            ("socket-group", self.socket_group.map(Value::from)),
            ("image", self.image.map(Value::from)),
            ("format", self.format.map(Value::from)),
            ("queues", self.queues.map(number)),
            ("read-only", self.read_only.map(boolean)),
            ("direct", self.direct.map(Value::from)),
            ("sector-size", self.sector_size.map(number)),
            ("serial", self.serial.map(Value::from)),
            ("polling", self.polling.map(Value::from)),
            ("images", images),
            ("iops", self.iops.map(Value::from)),
            ("iops-burst", self.iops_burst.map(Value::from)),
            ("bandwidth", self.bandwidth.map(Value::from)),
            ("bandwidth-burst", self.bandwidth_burst.map(Value::from)),
            ("memory", self.memory.map(Value::from)),
        ])
    }
}

/// A number of bytes, with a power of 1024 as a unit or without one.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        unit => return Err(format!("{unit:?} is no unit; give K, M, G or T")),
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| "not a length; give a number of bytes, or one like 20G".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use control::config::DiskSpec;
    use serde_json::json;

    use super::super::flags::tests::assert_a_flag_for_every_key;
    use super::super::{Cli, Command};
    use super::*;

    fn add(args: &[&str]) -> Map<String, Value> {
        match Cli::parse_from([&["ringmain", "disk", "add", "x"], args].concat()).command {
            Command::Disk(Disk::Add(add)) => add.flags(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lengths_have_units() {
        assert_eq!((size("512"), size("20G"), size("1TiB")), (Ok(512), Ok(20 << 30), Ok(1 << 40)));
        for wrong in ["", "G", "-1", "1.5G", "5X", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    /// The flags are all the keys of a `[[disk]]` table, as the error about an unknown key lists
    /// them.
    #[test]
    fn every_key_of_the_file_has_a_flag() {
        let unknown = json!({ "quite-unknown": 1 });
        let error = DiskSpec::from_flags(unknown.as_object().unwrap()).unwrap_err().to_string();
        assert_a_flag_for_every_key(&error, add);
    }
}
