//! Why the switch refuses a frame.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal, $text:literal;)*) => {
        /// Why the switch dropped a frame. Every drop is counted under one of these.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])* $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their [`index`](Self::index).
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// The stable name under which counters and `--json` show the reason.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DropReason::$variant => $name,)*
                }
            }

            /// The reason as a sentence for people.
            const fn text(self) -> &'static str {
                match self {
                    $(DropReason::$variant => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// The ingress port is not (any longer) part of the switch.
    NoPort = "no_port", "the port was removed while the frame was on its way";
    /// The ingress port is a mirror, which only gets copies.
    MirrorPort = "mirror_port", "a frame from a mirror, which only gets copies";
    /// The source address is a group address or all zeros.
    BadSource = "bad_source", "the source is a group address or zero";
    /// The port is locked to one source address and this is another.
    SourceLocked = "source_locked", "the port is locked to another source address";
    /// The source address is locked to another port of the network.
    SourceTaken = "source_taken", "the source address is locked to another port";
    /// The source address of an IP packet is not in the port's list.
    IpSpoofed = "ip_spoofed", "an IP source address that the port may not use";
    /// An ARP message claims an address that is not in the port's list, or another MAC address.
    ArpSpoofed = "arp_spoofed", "an ARP message that claims what the port may not";
    /// Neighbour discovery claims an address that is not in the port's list, or another MAC
    /// address.
    NdSpoofed = "nd_spoofed", "neighbour discovery that claims what the port may not";
    /// A message of a DHCP or DHCPv6 server, from a port with a list of addresses.
    DhcpServer = "dhcp_server", "a message of a DHCP server";
    /// A router advertisement or a redirect, from a port with a list of addresses.
    RouterAdvertisement = "router_advertisement", "a router advertisement or a redirect";
    /// What the frame claims cannot be found in its headers, on a port with a list of addresses.
    Unverifiable = "unverifiable", "headers that hide what the frame claims";
    /// Neither IPv4 nor IPv6 nor ARP, from a port with a list of addresses.
    OtherProtocol = "other_protocol", "a protocol other than IPv4, IPv6 and ARP";
    /// No rule of the port's security groups allows the frame.
    NotAllowed = "not_allowed", "no rule of the security groups allows the frame";
    /// The port's table of connections is full of connections in use.
    ConnectionsFull = "connections_full", "the table of connections is full";
    /// The connection cannot be found in the frame's headers, on a port with security groups.
    Untrackable = "untrackable", "headers that hide the connection";
    /// The destination is one of 01:80:c2:00:00:00-0f, which no bridge forwards (IEEE 802.1Q,
    /// 8.6.3).
    LinkLocal = "link_local", "the destination is reserved to the link";
    /// A frame with a VLAN tag came in on an access port.
    TaggedOnAccess = "tagged_on_access", "a tagged frame on an access port";
    /// A frame without a VLAN came in on a trunk port.
    UntaggedOnTrunk = "untagged_on_trunk", "an untagged frame on a trunk port";
    /// The tag names a VLAN that is not in the trunk's list.
    VlanNotAllowed = "vlan_not_allowed", "a VLAN that is not in the trunk's list";
    /// The destination lives on the port where the frame came from.
    Reflection = "reflection", "the destination is on the port that the frame came from";
    /// The frame came through a tunnel, and its destination is behind another one.
    SplitHorizon = "split_horizon", "the frame came from a tunnel, and would go into another";
    /// No other port is in the network.
    NoReceiver = "no_receiver", "no other port is in the network";
}

impl DropReason {
    /// Position in [`ALL`](Self::ALL), for arrays of counters.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct_snake_case_and_indices_follow_the_list() {
        let mut seen = HashSet::new();
        for (at, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), at);
            assert!(seen.insert(reason.name()), "{} twice", reason.name());
            assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(!reason.to_string().is_empty());
        }
    }
}
