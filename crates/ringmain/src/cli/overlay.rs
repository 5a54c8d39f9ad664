//! `ringmain overlay ...`.

use clap::{Args, Subcommand};

use super::Json;

/// `ringmain overlay ...`.
#[derive(Debug, Subcommand)]
pub enum Overlay {
    /// Show overlays: networks, this host's address, MTU, datagrams and what became of them
    Show(Which),
    /// Show the other hosts of overlays, and the frames that went to each
    Peers(Which),
    /// Show the stations that are known to be behind other hosts
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
