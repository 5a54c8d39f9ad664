//! `ringmain overlay ...`.

use clap::{Args, Subcommand};

use super::Json;

/// `ringmain overlay ...`.
#[derive(Debug, Subcommand)]
pub enum Overlay {
    /// Show overlays: networks, this host's address, MTU, sent and received datagrams, losses by
    /// reason
    Show(Which),
    /// Show the other hosts of overlays, and the number of frames sent to each host
    Peers(Which),
    /// Show the known stations on other hosts
    Macs(Which),
}

/// Which overlays, and how to print.
#[derive(Debug, Args)]
pub struct Which {
    /// Only this overlay
    pub name: Option<String>,
    #[command(flatten)]
    pub json: Json,
}
