//! The state that each end of a device writes into its directory of the store.

use std::fmt;

use hypervisor::{Nodes, StoreError};

/// The state of one end (`enum xenbus_state`; the store holds its number in decimal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The end does not exist, or its state is unknown.
    Unknown,
    /// The end is getting ready.
    Initialising,
    /// The end has written its offer, and waits.
    InitWait,
    /// The end has written its keys.
    Initialised,
    /// The end is connected.
    Connected,
    /// The end is about to close.
    Closing,
    /// The end is closed.
    Closed,
}

impl State {
    /// The number in the store.
    pub fn number(self) -> u8 {
        match self {
            State::Unknown => 0,
            State::Initialising => 1,
            State::InitWait => 2,
            State::Initialised => 3,
            State::Connected => 4,
            State::Closing => 5,
            State::Closed => 6,
        }
    }

    /// Reads the state of the end whose directory is `path`. A state that cannot be read is
    /// unknown.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn read(nodes: &dyn Nodes, path: &str) -> Result<State, StoreError> {
        match nodes.number(&format!("{path}/state")) {
            Ok(Some(1)) => Ok(State::Initialising),
            Ok(Some(2)) => Ok(State::InitWait),
            Ok(Some(3)) => Ok(State::Initialised),
            Ok(Some(4)) => Ok(State::Connected),
            Ok(Some(5)) => Ok(State::Closing),
            Ok(Some(6)) => Ok(State::Closed),
            Ok(_) | Err(StoreError::Value { .. } | StoreError::Denied { .. }) => Ok(State::Unknown),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Unknown => "unknown",
            State::Initialising => "initialising",
            State::InitWait => "waiting",
            State::Initialised => "initialised",
            State::Connected => "connected",
            State::Closing => "closing",
            State::Closed => "closed",
        })
    }
}
