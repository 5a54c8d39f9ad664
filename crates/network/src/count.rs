//! Counters: one writer each, readable by anyone at any time.
//!
//! Every frame is accounted for. Over the whole datapath, at rest:
//!
//! `in + copies = out + drops`
//!
//! where `in` counts frames fetched, `copies` what flooding, mirrors and segmentation added to
//! them, `out` frames delivered, and `drops` everything else, each under its reason. A drop before
//! the receiver is known counts at the sender's queue; a drop because of a receiver counts at the
//! receiver's queue.

use runtime::RunCounters;
use runtime::coalescing::{Notified, Traffic};
pub use runtime::{Counter, Histogram};
use switch::DropReason as SwitchReason;

use crate::step::{Charged, Spent};

macro_rules! drops {
    ($($variant:ident $name:literal $meaning:literal,)*) => {
        /// Why a frame was not delivered.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum DropReason { $(#[doc = $meaning] $variant,)* }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[DropReason] = &[$(DropReason::$variant,)*];

            /// The name under which the reason is counted and shown.
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }

            /// The meaning of the reason, in one line.
            pub fn meaning(self) -> &'static str {
                match self { $(DropReason::$variant => $meaning,)* }
            }
        }
    };
}

drops! {
    Runt "runt" "The frame is shorter than an Ethernet header.",
    Oversized "oversized" "The frame is longer than any receiver could take (64 KiB and headers).",
    BadOffload "bad_offload" "The offload header contradicts the frame.",
    TxDisabled "tx_disabled" "The sender's ring is disabled: it is drained and discarded.",
    NoPort "no_port" "The sender's port was removed while the frame was on its way.",
    MirrorPort "mirror_port" "The port is a mirror, which only gets copies.",
    BadSource "bad_source" "The source address is a group address or zero.",
    SourceLocked "source_locked" "The port is locked to another source address.",
    SourceTaken "source_taken" "The source address is locked to another port.",
    IpSpoofed "ip_spoofed" "The IP source address is not one of the port's addresses.",
    ArpSpoofed "arp_spoofed" "An ARP message claims another address than the port's.",
    NdSpoofed "nd_spoofed" "Neighbour discovery claims another address than the port's.",
    DhcpServer "dhcp_server" "A message of a DHCP server, from a port with a list of addresses.",
    RouterAdvertisement "router_advertisement" "A router advertisement or a redirect, from a port with a list of addresses.",
    Unverifiable "unverifiable" "Headers that hide what the frame claims, from a port with a list of addresses.",
    OtherProtocol "other_protocol" "Neither IPv4 nor IPv6 nor ARP, from a port with a list of addresses.",
    NotAllowed "not_allowed" "No rule of the port's security groups allows the frame.",
    ConnectionsFull "connections_full" "The port's table of connections is full of connections in use.",
    Untrackable "untrackable" "Headers that hide the connection, at a port with security groups.",
    LinkLocal "link_local" "The destination is reserved for the link itself (01:80:c2:00:00:0x).",
    TaggedOnAccess "tagged_on_access" "A tagged frame on an access port.",
    UntaggedOnTrunk "untagged_on_trunk" "An untagged frame on a trunk port.",
    VlanNotAllowed "vlan_not_allowed" "A VLAN that is not in the trunk's list.",
    Reflection "reflection" "The destination is behind the port that the frame came from.",
    SplitHorizon "split_horizon" "The frame came from a tunnel, and its destination is behind another one.",
    NoReceiver "no_receiver" "No other port is in the frame's network.",
    PortDown "port_down" "The receiver is not connected, or none of its queues is enabled.",
    RxFull "rx_full" "The receiver posted no buffers in time.",
    RxRate "rx_rate" "The receiver's port, or its budget, had used up its rate of receiving.",
    HeadOfLine "head_of_line" "The receiver was full, and frames for others would have waited behind the frame.",
    RxTooSmall "rx_too_small" "The receiver's buffer is too small, and it did not offer to merge several.",
    RxCostly "rx_costly" "Filling the receiver's buffers costs more than the frames: many small pieces, or pages that are not there.",
    RxRefused "rx_refused" "The host's kernel refused the frame, or the receiver can't be given it as it is.",
    Multicast "multicast" "A group that the receiver has not asked for.",
    NotGranted "not_granted" "A page of the sender or the receiver is not granted as it should be.",
    NotFetched "not_fetched" "The receiver was to copy the frame itself, and did not in time.",
    TooManySlots "too_many_slots" "The frame lies in more pieces than its kind of device allows.",
    OverMtu "over_mtu" "The frame is longer than the receiver's MTU.",
    SegmentTooSmall "segment_too_small" "The frame is to be cut into segments of less than 256 bytes, which a receiver without the offload is not given.",
    CannotSegment "cannot_segment" "The receiver takes no such offload, and the headers do not allow doing it here.",
    MirrorFull "mirror_full" "A copy for a mirror, which had no room for it at once.",
    HandoffFull "handoff_full" "Too many frames are on their way between two workers.",
}

impl From<SwitchReason> for DropReason {
    fn from(reason: SwitchReason) -> Self {
        match reason {
            SwitchReason::NoPort => DropReason::NoPort,
            SwitchReason::MirrorPort => DropReason::MirrorPort,
            SwitchReason::BadSource => DropReason::BadSource,
            SwitchReason::SourceLocked => DropReason::SourceLocked,
            SwitchReason::SourceTaken => DropReason::SourceTaken,
            SwitchReason::IpSpoofed => DropReason::IpSpoofed,
            SwitchReason::ArpSpoofed => DropReason::ArpSpoofed,
            SwitchReason::NdSpoofed => DropReason::NdSpoofed,
            SwitchReason::DhcpServer => DropReason::DhcpServer,
            SwitchReason::RouterAdvertisement => DropReason::RouterAdvertisement,
            SwitchReason::Unverifiable => DropReason::Unverifiable,
            SwitchReason::OtherProtocol => DropReason::OtherProtocol,
            SwitchReason::NotAllowed => DropReason::NotAllowed,
            SwitchReason::ConnectionsFull => DropReason::ConnectionsFull,
            SwitchReason::Untrackable => DropReason::Untrackable,
            SwitchReason::LinkLocal => DropReason::LinkLocal,
            SwitchReason::TaggedOnAccess => DropReason::TaggedOnAccess,
            SwitchReason::UntaggedOnTrunk => DropReason::UntaggedOnTrunk,
            SwitchReason::VlanNotAllowed => DropReason::VlanNotAllowed,
            SwitchReason::Reflection => DropReason::Reflection,
            SwitchReason::SplitHorizon => DropReason::SplitHorizon,
            SwitchReason::NoReceiver => DropReason::NoReceiver,
        }
    }
}

/// Counters of one ring of a queue pair.
#[derive(Default, Debug)]
pub struct RingCounters {
    /// Frames fetched from a Tx ring, or put on an Rx ring.
    pub frames: Counter,
    /// Bytes of those frames, offload headers not counted.
    pub bytes: Counter,
    /// Bursts with at least one such frame.
    pub bursts: Counter,
    /// Interrupts sent for the ring.
    pub interrupts: Counter,
    /// Times that entries were published without an interrupt, since the peer wanted none.
    pub suppressed: Counter,
    /// Times that entries of an Rx ring were published, and the interrupt for them was deferred.
    pub deferred: Counter,
}

impl RingCounters {
    /// Counts the outcome of a publication.
    #[inline]
    pub(crate) fn note(&self, notified: Notified) {
        match notified {
            Notified::Nothing => {}
            Notified::Sent => self.interrupts.add(1),
            Notified::Suppressed => self.suppressed.add(1),
            Notified::Deferred => self.deferred.add(1),
        }
    }
}

/// Frames that a device wrote into a guest's buffers by itself: neither fetched nor delivered by
/// the worker, and no part of its sum.
#[derive(Default, Debug)]
pub struct DirectCounters {
    /// How many.
    pub frames: Counter,
    /// Their bytes.
    pub bytes: Counter,
}

/// Counters of one queue pair. Directions are the guest's: Tx comes in, Rx goes out.
#[derive(Default, Debug)]
pub struct QueueCounters {
    /// The ring that the guest transmits on.
    pub tx: RingCounters,
    /// The ring that the guest receives on.
    pub rx: RingCounters,
    /// Frames that a device put on the Rx ring by itself.
    pub direct: DirectCounters,
    /// Frames that were added to those fetched: by flooding and for mirrors (counted at the
    /// sender's queue), and by segmentation (counted at the receiver's).
    pub copies: Counter,
    /// Frames held back because a receiver was full. They are fetched again, and counted in `tx`
    /// then.
    pub blocked: Counter,
    /// The times that senders waited for the queue's buffers.
    pub waits: Histogram,
    /// Page faults while a worker used the port's memory, counted while a worker has many.
    pub page_faults: Counter,
    /// Times that frames stayed in the Tx ring because page faults in the port's memory had taken
    /// too much time.
    pub fault_waits: Counter,
    /// Interrupts, or events, that took more than 100 us of CPU time to send.
    pub slow_interrupts: Counter,
    /// Times that frames stayed in the Tx ring because their port, or its budget, had used up its
    /// rate of sending.
    pub tx_limited: Counter,
    /// Requests for IP addresses of stations on other hosts that were answered in their name. The
    /// answer counts as a frame of its own: it is on the Rx ring, or dropped under its reason.
    pub answered_requests: Counter,
    /// Times that an IP address was not learned from a frame that says its sender has it: the port
    /// has as many as it may have, or the configuration gives the address to another one. A frame
    /// that waits counts again.
    pub refused_addresses: Counter,
    /// Wake-ups by the peer while the worker did not poll this queue.
    pub kicks: Counter,
    /// Time spent on the frames that the port received while a profile was taken.
    pub charged: Charged,
    drops: Drops,
}

/// A counter for each reason.
#[derive(Debug)]
struct Drops([Counter; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Drops(std::array::from_fn(|_| Counter::default()))
    }
}

impl QueueCounters {
    /// Frames that are on the Rx ring, whoever put them there, and frames that were sent.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            received: self.rx.frames.get() + self.direct.frames.get(),
            sent: self.tx.frames.get(),
        }
    }

    /// Counts `n` frames dropped for `reason`.
    #[inline]
    pub fn lose(&self, reason: DropReason, n: u64) {
        self.drops.0[reason as usize].add(n);
    }

    /// Frames dropped for `reason` so far.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.0[reason as usize].get()
    }

    /// Frames dropped so far, by the numbers of reasons.
    pub(crate) fn drops(&self) -> [u64; DropReason::ALL.len()] {
        self.drops.0.each_ref().map(Counter::get)
    }

    /// A reason for which more frames were dropped than `before`.
    pub(crate) fn dropped_since(
        &self,
        before: &[u64; DropReason::ALL.len()],
    ) -> Option<DropReason> {
        let grown = |(reason, before): &(&DropReason, &u64)| self.dropped(**reason) > **before;
        DropReason::ALL.iter().zip(before).find(grown).map(|(reason, _)| *reason)
    }

    /// Frames dropped so far, for whatever reason.
    pub fn dropped_total(&self) -> u64 {
        self.drops.0.iter().map(Counter::get).sum()
    }
}

/// Counters of one worker.
#[derive(Default, Debug)]
pub struct WorkerCounters {
    /// How it spent its rounds.
    pub run: RunCounters,
    /// Flow-cache hits, in frames.
    pub cache_hits: Counter,
    /// Questions put to the switch, in frames.
    pub cache_misses: Counter,
    /// Batches of frames handed off to other workers.
    pub handoff_batches: Counter,
    /// Frames in those batches.
    pub handed_off: Counter,
    /// Times that unevenly hashed flows were pointed to another queue.
    pub rebalanced: Counter,
    /// Times of its steps, while a profile was taken.
    pub spent: Spent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_in_the_documentation() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/observing.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()).collect();
        for reason in DropReason::ALL {
            let name = format!("`{}`", reason.name());
            assert!(rows.iter().any(|row| row.split(", ").any(|word| word == name)), "{name}");
        }
    }
}
