//! `ringmain capture`.

use clap::Args;

/// `ringmain capture`.
#[derive(Debug, Args)]
pub struct Capture {
    /// Names of 1 to 64 ports. For processes and vifs, use the names that `ringmain port list`
    /// shows, like guests/a
    #[arg(value_name = "PORT", required = true)]
    pub ports: Vec<String>,
    /// Capture only the frames that match this expression. The syntax is that of pcap-filter(7),
    /// like "icmp or port 53". The option needs tcpdump, which compiles the expression
    #[arg(long, short, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// Maximum number of bytes to capture of each frame [default: all]
    #[arg(long, short, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub snaplen: Option<u32>,
    /// Output file; "-" is standard output [default: standard output, unless standard output is a
    /// terminal]
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<String>,
}
