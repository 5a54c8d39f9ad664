//! The verdict of the switch on a frame.

use std::sync::Arc;

use frame::TagEdit;

use crate::generation::Stamp;
use crate::port_id::PortId;
use crate::reason::DropReason;

/// One receiver of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The port to deliver to.
    pub port: PortId,
    /// The change of the tag on the way.
    pub tag: TagEdit,
}

/// Where a frame goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nowhere.
    Drop(DropReason),
    /// To one port.
    To(Target),
    /// To several, at least one. The list is shared between all decisions that flood alike.
    Flood(Arc<[Target]>),
}

/// A decision, and how long it is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Where the frame goes.
    pub decision: Decision,
    /// The mirrors that also get a copy; `None`: there are none.
    pub mirrors: Option<Arc<[Target]>>,
    /// The decision is valid while [`Generations::holds`](crate::Generations::holds) is true.
    ///
    /// A cache should still ask again every [`Limits::age`](crate::Limits::age) / 4 or so, because
    /// each request keeps an active station from ageing out.
    pub stamp: Stamp,
}
