//! VLANs: the network that a frame enters, and the tag that it must have where it leaves.
//!
//! Only 802.1Q tags (TPID 0x8100) count. Any other outer tag, 802.1ad's 0x88a8 included, is
//! payload.

use std::fmt;

use frame::TagEdit;

use crate::reason::DropReason;

/// A broadcast domain: the one untagged network, or a VLAN.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Network(u16);

impl Network {
    /// The network of all ports without a VLAN rule. Tags in it are payload.
    pub const UNTAGGED: Network = Network(0);

    /// The network of a VLAN; `None` unless `vid` is 1-4094.
    pub fn vlan(vid: u16) -> Option<Network> {
        (1..=MAX_VID).contains(&vid).then_some(Network(vid))
    }

    /// The VLAN id, unless this is the untagged network.
    pub fn vid(self) -> Option<u16> {
        (self != Network::UNTAGGED).then_some(self.0)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vid() {
            Some(vid) => vid.fmt(f),
            None => "-".fmt(f),
        }
    }
}

/// The largest VLAN id that may be used (4095 is reserved, IEEE 802.1Q table 9-2).
const MAX_VID: u16 = 4094;
/// The VLAN id bits of a tag's TCI.
const VID: u16 = 0x0fff;
/// The priority and drop-eligible bits of a tag's TCI.
const PRIORITY: u16 = 0xf000;

/// Which networks a port is in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Vlan {
    /// The untagged network; tags pass as payload.
    #[default]
    None,
    /// One VLAN; frames carry no tag on the port.
    Access(u16),
    /// Several VLANs; frames carry their tag on the port.
    Trunk(Vec<u16>),
}

/// The kind of tag that a frame came with, as far as it matters to its targets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Form {
    /// None, or one that is payload.
    Plain,
    /// One with VLAN id 0: only these priority bits (already in place for a TCI).
    Priority(u16),
    /// One that names the network.
    Tagged,
    /// One that names the network, with another tag behind it. Without the first tag, the frame
    /// would be in another network.
    Nested,
}

impl Form {
    /// Whether a frame with this number of tags has only the tag that names its network. A further
    /// tag is payload, and so are the headers behind it, which belong to another network.
    pub(crate) fn is_whole(self, tags: u8) -> bool {
        tags == u8::from(matches!(self, Form::Tagged | Form::Priority(_)))
    }
}

impl Vlan {
    /// The same rule with its list sorted and without repetitions, or the first VLAN id that is not
    /// 1-4094.
    pub(crate) fn checked(mut self) -> Result<Vlan, u16> {
        let vids: &mut [u16] = match &mut self {
            Vlan::None => &mut [],
            Vlan::Access(vid) => std::slice::from_mut(vid),
            Vlan::Trunk(list) => {
                list.sort_unstable();
                list.dedup();
                list
            }
        };
        match vids.iter().find(|vid| Network::vlan(**vid).is_none()) {
            Some(vid) => Err(*vid),
            None => Ok(self),
        }
    }

    /// The network that a frame enters from such a port. `tci`: the frame's outermost tag, if that
    /// is 802.1Q; `nested`: another tag lies behind it.
    pub(crate) fn admit(
        &self,
        tci: Option<u16>,
        nested: bool,
    ) -> Result<(Network, Form), DropReason> {
        let vid = tci.map(|tci| tci & VID);
        match (self, tci, vid) {
            (Vlan::None, ..) => Ok((Network::UNTAGGED, Form::Plain)),
            (Vlan::Access(own), None, _) => Ok((Network(*own), Form::Plain)),
            (Vlan::Access(own), Some(tci), Some(0)) if !nested => {
                Ok((Network(*own), Form::Priority(tci & PRIORITY)))
            }
            (Vlan::Access(_), ..) => Err(DropReason::TaggedOnAccess),
            (Vlan::Trunk(_), _, None | Some(0)) => Err(DropReason::UntaggedOnTrunk),
            (Vlan::Trunk(list), _, Some(vid)) if list.binary_search(&vid).is_ok() => {
                Ok((Network(vid), if nested { Form::Nested } else { Form::Tagged }))
            }
            (Vlan::Trunk(_), ..) => Err(DropReason::VlanNotAllowed),
        }
    }

    /// Whether such a port is in the network.
    pub(crate) fn is_in(&self, network: Network) -> bool {
        match self {
            Vlan::None => network == Network::UNTAGGED,
            Vlan::Access(vid) => network.0 == *vid,
            Vlan::Trunk(list) => list.binary_search(&network.0).is_ok(),
        }
    }

    /// Whether two such ports share a network.
    pub fn meets(&self, other: &Vlan) -> bool {
        self.networks().any(|network| other.is_in(network))
    }

    /// All networks that such a port is in.
    pub(crate) fn networks(&self) -> impl Iterator<Item = Network> {
        let vids: &[u16] = match self {
            Vlan::None => &[0],
            Vlan::Access(vid) => std::slice::from_ref(vid),
            Vlan::Trunk(list) => list,
        };
        vids.iter().map(|vid| Network(*vid))
    }

    /// The change that a frame of the network and form needs to leave on such a port; `None` when
    /// the port is not in the network, or the frame would leave with a tag of another one.
    pub(crate) fn edit(&self, network: Network, form: Form) -> Option<TagEdit> {
        if !self.is_in(network) {
            return None;
        }
        Some(match (self, form) {
            (Vlan::None, _) => TagEdit::Keep,
            (Vlan::Access(_), Form::Plain) => TagEdit::Keep,
            (Vlan::Access(_), Form::Priority(_) | Form::Tagged) => TagEdit::Pop,
            (Vlan::Access(_), Form::Nested) => return None,
            (Vlan::Trunk(_), Form::Plain) => TagEdit::Push(network.0),
            (Vlan::Trunk(_), Form::Priority(bits)) => TagEdit::Replace(bits | network.0),
            (Vlan::Trunk(_), Form::Tagged | Form::Nested) => TagEdit::Keep,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trunk(list: &[u16]) -> Vlan {
        Vlan::Trunk(list.to_vec()).checked().unwrap()
    }

    #[test]
    fn the_door() {
        use DropReason::*;
        let (access, tagged) = (Vlan::Access(10), trunk(&[20, 10]));
        let net = |vid| Network::vlan(vid).unwrap();
        let cases = [
            (&Vlan::None, None, Ok((Network::UNTAGGED, Form::Plain))),
            (&Vlan::None, Some(0x2005), Ok((Network::UNTAGGED, Form::Plain))),
            (&access, None, Ok((net(10), Form::Plain))),
            (&access, Some(0xb000), Ok((net(10), Form::Priority(0xb000)))),
            (&access, Some(10), Err(TaggedOnAccess)),
            (&access, Some(20), Err(TaggedOnAccess)),
            (&tagged, Some(0xe00a), Ok((net(10), Form::Tagged))),
            (&tagged, Some(20), Ok((net(20), Form::Tagged))),
            (&tagged, Some(30), Err(VlanNotAllowed)),
            (&tagged, Some(0x0fff), Err(VlanNotAllowed)),
            (&tagged, Some(0xe000), Err(UntaggedOnTrunk)),
            (&tagged, None, Err(UntaggedOnTrunk)),
        ];
        for (rule, tci, want) in cases {
            assert_eq!(rule.admit(tci, false), want, "{rule:?} {tci:x?}");
        }
    }

    #[test]
    fn a_tag_behind_a_tag_never_leaves_as_the_outer_one() {
        let (access, tagged) = (Vlan::Access(10), trunk(&[10, 20]));
        let net = Network::vlan(10).unwrap();
        assert_eq!(access.admit(Some(0xb000), true), Err(DropReason::TaggedOnAccess));
        assert_eq!(tagged.admit(Some(0xe00a), true), Ok((net, Form::Nested)));
        assert_eq!(access.edit(net, Form::Nested), None);
        assert_eq!(tagged.edit(net, Form::Nested), Some(TagEdit::Keep));
        let untagged = (Network::UNTAGGED, Form::Plain);
        assert_eq!(Vlan::None.admit(Some(0x2005), true), Ok(untagged));
    }

    #[test]
    fn the_way_out() {
        let (access, tagged) = (Vlan::Access(10), trunk(&[10, 20]));
        let net = Network::vlan(10).unwrap();
        let cases = [
            (&Vlan::None, Network::UNTAGGED, Form::Plain, Some(TagEdit::Keep)),
            (&Vlan::None, net, Form::Plain, None),
            (&access, Network::UNTAGGED, Form::Plain, None),
            (&access, net, Form::Plain, Some(TagEdit::Keep)),
            (&access, net, Form::Priority(0xb000), Some(TagEdit::Pop)),
            (&access, net, Form::Tagged, Some(TagEdit::Pop)),
            (&tagged, net, Form::Plain, Some(TagEdit::Push(10))),
            (&tagged, net, Form::Priority(0xb000), Some(TagEdit::Replace(0xb00a))),
            (&tagged, net, Form::Tagged, Some(TagEdit::Keep)),
            (&tagged, Network::vlan(30).unwrap(), Form::Tagged, None),
        ];
        for (rule, network, form, want) in cases {
            assert_eq!(rule.edit(network, form), want, "{rule:?} {network} {form:?}");
        }
    }

    #[test]
    fn impossible_vlan_ids_are_found() {
        assert_eq!(Vlan::Access(0).checked(), Err(0));
        assert_eq!(Vlan::Access(4095).checked(), Err(4095));
        assert_eq!(Vlan::Trunk(vec![1, 4096, 2]).checked(), Err(4096));
        assert_eq!(Vlan::Trunk(vec![3, 1, 3]).checked(), Ok(Vlan::Trunk(vec![1, 3])));
    }
}
