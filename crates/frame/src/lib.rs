//! Bytes on the wire: header views, flow hash, checksums, segmentation and its inverse.
//!
//! Everything here works on a *private* copy of a frame's first bytes (its [`Head`]), never on
//! memory that a peer can still change. The rest of the frame stays where the peer put it and
//! appears here only as a length, or as a [`Sum`] that the caller has taken over it.
//!
//! All input is peer controlled. Nothing in this crate panics, allocates or loops without a bound
//! on any of it: input that cannot be interpreted is reported as "not known" ([`parse`]) or refused
//! with a named error ([`BadOffload`]).
//!
//! Multi-byte fields are big endian on the wire and plain integers here; `struct virtio_net_hdr` is
//! little endian.

#![forbid(unsafe_code)]

pub mod answer;
pub mod bpf;
mod bytes;
pub mod checksum;
pub mod claim;
pub mod coalesce;
pub mod flow;
pub mod head;
pub mod mac;
pub mod offload;
mod owned;
pub mod prefix;
#[cfg(test)]
mod sample;
pub mod segment;
mod too_big;
pub mod view;
pub mod vlan;
pub mod vnet;
pub mod vxlan;

pub use answer::{Owner, answer, may_answer};
pub use checksum::{Sum, complete_csum};
pub use claim::{Claim, Unverifiable, claim, requested};
pub use coalesce::Coalescer;
pub use flow::{FlowHasher, flow_hash};
pub use head::{HEAD_LEN, HEADROOM, Head};
pub use mac::Mac;
pub use offload::{Accepts, BadOffload, Gso, GsoKind, Offload, PartialCsum};
pub use owned::owned;
pub use prefix::{BadPrefix, Prefix};
pub use segment::{Segment, Segmenter};
pub use too_big::report_too_big;
pub use view::{Headers, L3, L4, parse, parse_into};
pub use vlan::{NoHeadroom, TagEdit};
pub use vnet::{VNET_LEGACY_LEN, VNET_LEN};
pub use vxlan::Vni;
