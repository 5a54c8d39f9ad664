//! A `[[budget]]` table as it is written.

use super::amount::{BitRate, BurstBytes, Frames};
use super::key_table::key_table;
use super::port_table::Name;
use super::value::{Amount, TableName, Text};

key_table! {
    /// A `[[budget]]` table.
    BudgetTable {
        "name" name: Text<Name>,
        "tx-rate" tx_rate: Amount<BitRate>,
        "tx-burst" tx_burst: Amount<BurstBytes>,
        "tx-frames" tx_frames: Amount<Frames>,
        "tx-frames-burst" tx_frames_burst: Amount<Frames>,
        "rx-rate" rx_rate: Amount<BitRate>,
        "rx-burst" rx_burst: Amount<BurstBytes>,
        "rx-frames" rx_frames: Amount<Frames>,
        "rx-frames-burst" rx_frames_burst: Amount<Frames>,
    }
}

impl TableName for BudgetTable {
    const EXPECTED: &'static str = "a list of tables; write [[budget]]";
}
