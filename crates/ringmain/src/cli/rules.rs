//! `ringmain rules ...`.

use clap::Subcommand;

use super::Json;

/// `ringmain rules ...`.
#[derive(Debug, Subcommand)]
pub enum Rules {
    /// Show the rules of a port, in the order in which they are asked
    Show {
        /// Name of the port
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Show whether the rules of a port let a connection be opened, and which one does
    Test {
        /// Name of the port
        name: String,
        /// in: to the guest; out: from the guest
        direction: String,
        /// tcp, udp, sctp, icmp, or the number of a protocol
        protocol: String,
        /// The address that the first packet comes from, and its port, like 192.0.2.1:4000
        source: String,
        /// The address that the packet goes to, and its port
        destination: String,
        #[command(flatten)]
        json: Json,
    },
}
