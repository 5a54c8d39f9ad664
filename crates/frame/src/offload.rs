//! Offload metadata of a frame, independent of any transport: unfinished checksums and
//! segmentation.
//!
//! A guest may send a frame whose checksum is not finished, or one big frame that stands for many.
//! A receiver that accepts such a frame ([`Accepts::takes`]) gets it unchanged. For other receivers
//! the switch finishes checksums and segments frames ([`crate::checksum`], [`crate::segment`]).

/// The offload metadata of one frame. The default is a plain, finished frame of unknown checksum.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Offload {
    /// The transport checksum that is still to be finished; always there when `gso` is.
    pub csum: Option<PartialCsum>,
    /// The frame stands for several on the wire.
    pub gso: Option<Gso>,
    /// The checksum is known to be good; meaningful only without `csum`.
    pub valid: bool,
}

impl Offload {
    /// Whether the frame is a plain, finished one of unknown checksum.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.csum.is_none() && self.gso.is_none() && !self.valid
    }
}

/// A checksum field that holds the pseudo header's sum so far; the bytes from `start` to the
/// frame's end are still to be summed (virtio 1.2, 5.1.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialCsum {
    /// Where summing starts: bytes from the start of the frame.
    pub start: u16,
    /// Where the 16-bit checksum is: bytes from `start`.
    pub offset: u16,
}

/// How one big frame is to be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// The protocol that is cut into segments.
    pub kind: GsoKind,
    /// Payload bytes per segment, the last one perhaps fewer. Not zero once a decoder has seen it.
    pub size: u16,
    /// The sender's TCP uses ECN: the CWR flag needs care in the first segment.
    pub ecn: bool,
}

/// The protocol that is cut into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4: every segment is a datagram of its own.
    UdpV4,
    /// UDP over IPv6.
    UdpV6,
}

/// The offloads that a receiver accepts. The default takes plain frames only.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Accepts {
    /// Unfinished checksums of whole frames, and the note that a checksum is good.
    pub csum: bool,
    /// [`GsoKind::TcpV4`].
    pub tso4: bool,
    /// [`GsoKind::TcpV6`].
    pub tso6: bool,
    /// TCP segmentation with [`Gso::ecn`].
    pub ecn: bool,
    /// [`GsoKind::UdpV4`].
    pub uso4: bool,
    /// [`GsoKind::UdpV6`].
    pub uso6: bool,
}

impl Accepts {
    /// Takes whatever there is.
    pub const ALL: Accepts =
        Accepts { csum: true, tso4: true, tso6: true, ecn: true, uso4: true, uso6: true };

    /// True when a frame with this metadata may go to the receiver untouched. A frame to be
    /// segmented has an unfinished checksum, and a receiver that segments frames finishes those of
    /// the segments.
    #[inline]
    pub fn takes(self, offload: &Offload) -> bool {
        match offload.gso {
            Some(gso) => self.takes_gso(gso),
            None => self.csum || offload.csum.is_none(),
        }
    }

    #[inline]
    fn takes_gso(self, gso: Gso) -> bool {
        let kind = match gso.kind {
            GsoKind::TcpV4 => self.tso4,
            GsoKind::TcpV6 => self.tso6,
            GsoKind::UdpV4 => self.uso4,
            GsoKind::UdpV6 => self.uso6,
        };
        kind && (self.ecn || !gso.ecn)
    }
}

/// Why a frame's offload metadata is refused. Such a frame is dropped; its port stays in service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum BadOffload {
    /// The checksum field or its start lies outside of the frame, of its first [`crate::HEAD_LEN`]
    /// bytes, or of the part that an offload may change.
    #[error("checksum outside of the frame's headers")]
    CsumRange,
    /// The frame is TCP or UDP, but the checksum is not where that protocol keeps it.
    #[error("checksum is not where the protocol keeps it")]
    CsumPlace,
    /// A checksum that is not the Internet checksum (SCTP) cannot be finished here.
    #[error("checksum of a kind that cannot be finished in software")]
    CsumKind,
    /// A fragment of a datagram has neither a checksum of its own to finish nor segments.
    #[error("offload asked for a fragment")]
    Fragment,
    /// A segmentation type that was never offered (legacy UDP fragmentation) or does not exist.
    #[error("unknown segmentation type")]
    GsoType,
    /// The segmentation type does not match the frame's protocols.
    #[error("segmentation type does not match the frame")]
    GsoProtocol,
    /// Segmentation without a checksum to finish.
    #[error("segmentation without checksum offload")]
    GsoWithoutCsum,
    /// Segments of zero bytes, or of more than an IP packet can hold.
    #[error("impossible segment size")]
    GsoSize,
    /// More segments than [`crate::segment`] makes of a frame.
    #[error("too many segments")]
    GsoCount,
    /// The frame is shorter than its own headers say, or they do not fit into the private head.
    #[error("frame shorter than its headers")]
    Truncated,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(kind: GsoKind, ecn: bool) -> Offload {
        let csum = Some(PartialCsum { start: 34, offset: 16 });
        Offload { csum, gso: Some(Gso { kind, size: 1448, ecn }), valid: false }
    }

    #[test]
    fn everybody_takes_plain_frames() {
        assert!(Accepts::default().takes(&Offload::default()));
        assert!(Accepts::default().takes(&Offload { valid: true, ..Offload::default() }));
    }

    #[test]
    fn a_partial_checksum_needs_csum() {
        let partial = Offload { gso: None, ..cut(GsoKind::TcpV4, false) };
        assert!(!Accepts { csum: false, ..Accepts::ALL }.takes(&partial));
        assert!(Accepts { csum: true, ..Accepts::default() }.takes(&partial));
    }

    #[test]
    fn each_kind_needs_its_own_permission() {
        let none = Accepts { csum: true, ..Accepts::default() };
        let each = [
            (GsoKind::TcpV4, Accepts { tso4: true, ..none }),
            (GsoKind::TcpV6, Accepts { tso6: true, ..none }),
            (GsoKind::UdpV4, Accepts { uso4: true, ..none }),
            (GsoKind::UdpV6, Accepts { uso6: true, ..none }),
        ];
        for (kind, _) in each {
            for (granted, accepts) in each {
                assert_eq!(accepts.takes(&cut(kind, false)), kind == granted);
            }
        }
    }

    #[test]
    fn ecn_needs_its_own_permission() {
        assert!(!Accepts { ecn: false, ..Accepts::ALL }.takes(&cut(GsoKind::TcpV6, true)));
        assert!(Accepts::ALL.takes(&cut(GsoKind::TcpV6, true)));
    }
}
