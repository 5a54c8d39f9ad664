//! `ringmain rules ...`.

use clap::Subcommand;

use super::Json;

/// `ringmain rules ...`.
#[derive(Debug, Subcommand)]
pub enum Rules {
    /// Show the rules of a port, in the order of evaluation
    Show {
        /// Name of the port
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Show whether the rules of a port allow a new connection, and which rule allows the
    /// connection
    Test {
        /// Name of the port
        name: String,
        /// in: to the guest; out: from the guest
        direction: String,
        /// tcp, udp, sctp, icmp, or the number of a protocol
        protocol: String,
        /// Source address and port of the first packet, like 192.0.2.1:4000
        source: String,
        /// Destination address and port of the first packet
        destination: String,
        #[command(flatten)]
        json: Json,
    },
}
