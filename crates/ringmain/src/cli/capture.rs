//! `ringmain capture`.

use clap::Args;

/// `ringmain capture`.
#[derive(Debug, Args)]
pub struct Capture {
    /// Names of the ports, 1 to 64; of processes and vifs, the names that `ringmain port list`
    /// shows, like guests/a
    #[arg(value_name = "PORT", required = true)]
    pub ports: Vec<String>,
    /// Only the frames that this expression matches, in the language of pcap-filter(7), like "icmp
    /// or port 53". Compiled by tcpdump, which has to be installed
    #[arg(long, short, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// Most bytes to capture of each frame [default: all]
    #[arg(long, short, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub snaplen: Option<u32>,
    /// Where to write; "-" is standard output [default: standard output, if that is no terminal]
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<String>,
}
