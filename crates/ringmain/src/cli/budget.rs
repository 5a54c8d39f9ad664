//! `ringmain budget ...`.

use clap::Subcommand;

use super::Json;

/// `ringmain budget ...`.
#[derive(Debug, Subcommand)]
pub enum Budget {
    /// Add a budget that ports can share
    Add {
        /// Name of the budget
        name: String,
        /// Configuration keys with their values, like tx-rate=1Gbit. The keys are tx-rate,
        /// tx-burst, tx-frames, tx-frames-burst, and the four corresponding rx keys
        #[arg(required = true, value_name = "KEY=VALUE")]
        limits: Vec<String>,
    },
    /// Change a budget, for all ports that share it
    Set {
        /// Name of the budget
        name: String,
        /// Configuration keys with their new values, like tx-rate=2Gbit rx-rate=none
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
    },
    /// Remove a budget that no port shares
    Remove {
        /// Name of the budget
        name: String,
    },
    /// Show all budgets
    List(Json),
    /// Show one budget: its limits, and the ports that share it
    Show {
        /// Name of the budget
        name: String,
        #[command(flatten)]
        json: Json,
    },
}
