//! A station: an address in a network.

use frame::Mac;

use crate::vlan::Network;

/// An address in a network: the key of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Station {
    /// The broadcast domain.
    pub network: Network,
    /// The address in it.
    pub mac: Mac,
}
