//! The points that are measured with overlays, and what each should reach.

use super::frames::Traffic;
use super::underlay::{Transport, Wire};
use crate::bench::goal::Goal;
use crate::bench::goal::Goal::Times;
use crate::bench::point::{Kind, Point, Unit};

/// Names of the peers.
const KERNEL: &str = "VXLAN + bridge";
const OVS: &str = "OVS-DPDK";

/// A point, and how it is measured.
#[derive(Clone, Debug)]
pub(super) struct OverlayPoint {
    pub(super) point: Point,
    pub(super) traffic: Traffic,
    pub(super) wire: Wire,
    /// That of Ringmain.
    pub(super) transport: Transport,
}

impl OverlayPoint {
    /// Whether the peer is OVS-DPDK, and not the kernel.
    pub(super) fn is_beside_ovs(&self) -> bool {
        self.point.peer() == OVS
    }
}

/// A point with this name and title, measured beside `peer`.
const fn beside(
    peer: &'static str,
    [name, title]: [&'static str; 2],
    traffic: Traffic,
    wire: Wire,
    figures: &'static [(Unit, Option<Goal>)],
) -> OverlayPoint {
    let kind = Kind::Overlay { frames: title, peer };
    let transport = Transport::Udp;
    OverlayPoint { point: Point { name, title, kind, figures }, traffic, wire, transport }
}

/// The same, with a TAP device as Ringmain's underlay.
const fn by_tap(point: OverlayPoint) -> OverlayPoint {
    OverlayPoint { transport: Transport::Tap, ..point }
}

/// The same, with AF_XDP as Ringmain's underlay.
const fn by_xdp(point: OverlayPoint) -> OverlayPoint {
    OverlayPoint { transport: Transport::Xdp, ..point }
}

/// All points. Sizes are those of the guests' frames.
pub(super) static POINTS: [OverlayPoint; 18] = [
    beside(
        KERNEL,
        ["64", "64 B, one flow"],
        Traffic::udp(64, 1),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(1.3))), (Unit::Mpps, None)],
    ),
    beside(
        KERNEL,
        ["64-flows", "64 B, 64 flows interleaved"],
        Traffic::udp(64, 64),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(1.3))), (Unit::Mpps, None)],
    ),
    beside(
        KERNEL,
        ["1450", "1464 B (MTU 1450)"],
        Traffic::udp(1464, 1),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(1.2))), (Unit::Gbps, None)],
    ),
    beside(
        KERNEL,
        ["64k", "64 KB TSO, veth"],
        Traffic::TSO,
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(0.8))), (Unit::Gbps, None)],
    ),
    beside(
        KERNEL,
        ["64k-wire", "64 KB TSO, 1500 B wire"],
        Traffic::TSO,
        Wire::Segmented,
        &[(Unit::HostNanos, Some(Times(1.0))), (Unit::Gbps, None)],
    ),
    by_xdp(beside(
        KERNEL,
        ["64-xdp", "64 B, one flow, by AF_XDP"],
        Traffic::udp(64, 1),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(2.0))), (Unit::Mpps, None)],
    )),
    by_tap(beside(
        KERNEL,
        ["64k-tap", "64 KB TSO, veth, by TAP"],
        Traffic::TSO,
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(0.8))), (Unit::Gbps, None)],
    )),
    by_tap(beside(
        KERNEL,
        ["64k-wire-tap", "64 KB TSO, 1500 B wire, by TAP"],
        Traffic::TSO,
        Wire::Segmented,
        &[(Unit::HostNanos, Some(Times(1.0))), (Unit::Gbps, None)],
    )),
    beside(
        OVS,
        ["64-ovs", "64 B, one flow, to OVS"],
        Traffic::udp(64, 1),
        Wire::Unsegmented,
        &[(Unit::HostNanos, None), (Unit::Mpps, None)],
    ),
    beside(
        OVS,
        ["64-flows-ovs", "64 B, 64 flows, to OVS"],
        Traffic::udp(64, 64),
        Wire::Unsegmented,
        &[(Unit::HostNanos, None), (Unit::Mpps, None)],
    ),
    beside(
        OVS,
        ["1450-ovs", "1464 B, to OVS"],
        Traffic::udp(1464, 1),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(1.2))), (Unit::Gbps, None)],
    ),
    beside(
        OVS,
        ["64k-ovs", "64 KB TSO, veth, to OVS"],
        Traffic::TSO,
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(2.0))), (Unit::Gbps, None)],
    ),
    beside(
        OVS,
        ["64k-wire-ovs", "64 KB TSO, 1500 B wire, to OVS"],
        Traffic::TSO,
        Wire::Segmented,
        &[(Unit::HostNanos, Some(Times(2.0))), (Unit::Gbps, None)],
    ),
    by_xdp(beside(
        OVS,
        ["64-xdp-ovs", "64 B, one flow, by AF_XDP, to OVS"],
        Traffic::udp(64, 1),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(1.0))), (Unit::Mpps, None)],
    )),
    by_xdp(beside(
        OVS,
        ["64-flows-xdp-ovs", "64 B, 64 flows, by AF_XDP, to OVS"],
        Traffic::udp(64, 64),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(1.0))), (Unit::Mpps, None)],
    )),
    by_xdp(beside(
        OVS,
        ["1450-xdp-ovs", "1464 B, by AF_XDP, to OVS"],
        Traffic::udp(1464, 1),
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(1.2))), (Unit::Gbps, None)],
    )),
    by_tap(beside(
        OVS,
        ["64k-tap-ovs", "64 KB TSO, veth, by TAP, to OVS"],
        Traffic::TSO,
        Wire::Unsegmented,
        &[(Unit::HostNanos, Some(Times(2.0))), (Unit::Gbps, None)],
    )),
    by_tap(beside(
        OVS,
        ["64k-wire-tap-ovs", "64 KB TSO, 1500 B wire, by TAP, to OVS"],
        Traffic::TSO,
        Wire::Segmented,
        &[(Unit::HostNanos, Some(Times(2.0))), (Unit::Gbps, None)],
    )),
];

/// Names of all points.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|overlay| overlay.point.name)
}

/// The point of this name.
pub(super) fn find(name: &str) -> Option<&'static OverlayPoint> {
    POINTS.iter().find(|overlay| overlay.point.name == name)
}

/// Points with these names, or all, in the order of the table.
pub(super) fn select(wanted: &[String]) -> impl Iterator<Item = &'static OverlayPoint> {
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|other| other == name);
    POINTS.iter().filter(move |overlay| is_wanted(overlay.point.name))
}
