//! `ringmain guest`.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::Args;

/// `ringmain guest`.
#[derive(Debug, Args)]
pub struct Guest {
    /// Name of the guest, from which the name of its port is derived
    #[arg(long, short, value_name = "NAME")]
    pub name: String,
    /// Number of queues of the interface, at most the number that the port allows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub queues: u16,
    /// Number of threads that drive the queues [default: one for each queue]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub vcpus: Option<u16>,
    /// IPv4 address and prefix length, like 10.0.0.1/24
    #[arg(long, short, value_name = "ADDRESS/BITS", value_parser = prefix)]
    pub address: Option<(Ipv4Addr, u8)>,
    /// Hardware address of the interface [default: derived from the guest's name]
    #[arg(long, value_name = "ADDRESS", value_parser = mac)]
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet, in bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..=65000))]
    pub mtu: Option<u16>,
    /// Request a receive queue of the network card that the port names with device-queue
    #[arg(long)]
    pub device_queue: bool,
    /// Use one event channel for both directions of a queue, as old frontends do [default: one
    /// event channel for each direction]
    #[arg(long)]
    pub single_channel: bool,
    /// Name of the interface in the guest's namespace
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    pub interface: String,
    /// Socket that guests connect to [default: the socket of the daemon's first embedded port]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The command to run [default: a shell]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        assert_eq!(prefix("10.0.0.1/8"), Ok((Ipv4Addr::new(10, 0, 0, 1), 8)));
        assert_eq!(prefix("10.0.0.1"), Ok((Ipv4Addr::new(10, 0, 0, 1), 24)));
        assert!(prefix("10.0.0/8").is_err() && prefix("10.0.0.1/33").is_err());
        assert_eq!(mac("02:00:00:00:00:fe"), Ok([2, 0, 0, 0, 0, 0xfe]));
        assert!(mac("01:00:00:00:00:fe").is_err() && mac("02:00").is_err());
    }
}
