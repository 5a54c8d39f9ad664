//! Limits of rates, and the budgets that ports share.

use serde::{Deserialize, Serialize};

/// The limits of a port or a budget. *Tx* is what guests send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LimitsReport {
    /// Limits of sending.
    pub tx: DirectionReport,
    /// Limits of receiving.
    pub rx: DirectionReport,
}

/// The limits of one direction; null: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Bits of frames per second.
    pub bits_per_second: Option<u64>,
    /// Bytes that may go at once after a pause.
    pub burst_bytes: Option<u64>,
    /// Frames per second.
    pub frames_per_second: Option<u64>,
    /// Frames that may go at once after a pause.
    pub burst_frames: Option<u64>,
}

/// A budget, and the ports that share it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BudgetReport {
    /// The name.
    pub name: String,
    /// Limits of the budget's ports together.
    pub limits: LimitsReport,
    /// The ports that share the budget: ports of the configuration, each with the ports that it
    /// stands for, and vifs that name the budget.
    pub ports: Vec<String>,
}
