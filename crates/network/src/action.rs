//! What happens to a frame, as the switch decided.

use std::sync::Arc;

use frame::Owner;
use switch::{Decision, PortId, Target, Verdict};

use crate::count::DropReason;

/// The decision for a frame.
#[derive(Clone, Debug, Default)]
pub enum Action {
    /// No decision yet.
    #[default]
    Unclassified,
    /// Not delivered.
    Drop(DropReason),
    /// To one port.
    Output(Target),
    /// To several.
    Flood(Arc<[Target]>),
    /// The frame asks for an address, and is turned into the answer of the station that has it.
    Answer(Owner),
    /// To some or none, and copies to mirrors.
    Mirrored(Arc<Mirrored>),
}

impl Action {
    /// A copy. Most actions have one port, and are copied without the calls that counted ones need.
    #[inline]
    pub(crate) fn copy(&self) -> Self {
        match self {
            Action::Output(target) => Action::Output(*target),
            other => other.clone(),
        }
    }

    /// Whether the frame goes to `target`, and nowhere else.
    #[inline]
    pub(crate) fn is_output(&self, target: Target) -> bool {
        matches!(self, Action::Output(other) if *other == target)
    }

    /// What the switch decided.
    pub(crate) fn of(Verdict { decision, mirrors, .. }: Verdict) -> Self {
        if let Some(mirrors) = mirrors {
            return Action::Mirrored(Arc::new(Mirrored { decision, mirrors }));
        }
        match decision {
            Decision::Drop(reason) => Action::Drop(reason.into()),
            Decision::To(target) => Action::Output(target),
            Decision::Flood(targets) => Action::Flood(targets),
        }
    }

    /// Whether the frame is not let in. One that only finds no receiver is.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Action::Drop(reason) if *reason != DropReason::NoReceiver)
    }

    /// Whether the frame goes to several ports.
    pub(crate) fn is_flood(&self) -> bool {
        match self {
            Action::Flood(_) => true,
            Action::Mirrored(mirrored) => mirrored.is_flood(),
            _ => false,
        }
    }

    /// The port that the frame goes to, if there is one, and it is no flood.
    pub(crate) fn receiver(&self) -> Option<PortId> {
        match self {
            Action::Output(target) => Some(target.port),
            Action::Mirrored(mirrored) => mirrored.receiver(),
            _ => None,
        }
    }
}

/// The decision for a frame that has mirrors.
#[derive(Clone, Debug)]
pub struct Mirrored {
    /// What happens to the frame.
    pub decision: Decision,
    /// Who gets a copy.
    pub mirrors: Arc<[Target]>,
}

impl Mirrored {
    pub(crate) fn is_flood(&self) -> bool {
        matches!(self.decision, Decision::Flood(_))
    }

    pub(crate) fn receiver(&self) -> Option<PortId> {
        if let Decision::To(target) = self.decision { Some(target.port) } else { None }
    }
}
