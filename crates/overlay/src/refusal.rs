//! The reasons why a datagram from the underlay is refused.

use frame::vxlan::BadVxlan;

macro_rules! refusals {
    ($($variant:ident $name:literal $meaning:literal,)*) => {
        /// Why a datagram from the underlay became no frame. Each is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Refusal { $(#[doc = $meaning] $variant,)* }

        impl Refusal {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Refusal] = &[$(Refusal::$variant,)*];

            /// The name under which it is counted and shown.
            pub fn name(self) -> &'static str {
                match self { $(Refusal::$variant => $name,)* }
            }

            /// The meaning, in one line.
            pub fn meaning(self) -> &'static str {
                match self { $(Refusal::$variant => $meaning,)* }
            }
        }
    };
}

refusals! {
    Malformed "malformed" "The datagram is too short for a VXLAN header and a frame, or was cut off.",
    NoVni "no_vni" "The flag of the VXLAN header that makes its VNI valid is not set.",
    UnknownVni "unknown_vni" "The VNI is that of no network here.",
    UnknownVtep "unknown_vtep" "The sender is no peer of the network.",
    NotVxlan "not_vxlan" "The packet that came by a TAP device or a card is no VXLAN datagram for the overlay.",
    Checksum "checksum" "The outer checksum is wrong.",
}

impl From<BadVxlan> for Refusal {
    fn from(bad: BadVxlan) -> Refusal {
        match bad {
            BadVxlan::NoVni => Refusal::NoVni,
            BadVxlan::Outer => Refusal::NotVxlan,
            BadVxlan::Checksum => Refusal::Checksum,
            BadVxlan::Short | BadVxlan::Length => Refusal::Malformed,
        }
    }
}
