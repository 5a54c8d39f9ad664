//! The features that a guest's driver negotiates, and the buffers that follow from them.

use ring::driver::{DriverRing, Tables};
use vhost_user::net::feature::bit;
use vhost_user_driver::FrontEndConfig;

use super::Error;
use super::args::{Args, HeaderPlace, Layout};
use super::pool::{Cut, Pool};

/// Feature bits: those that the driver supports, and those that it requires.
pub fn front_end_config(args: &Args) -> FrontEndConfig {
    let when = |condition: bool, bits: u64| if condition { bits } else { 0 };
    let offloads = bit::CSUM | bit::GUEST_CSUM | bit::HOST_TSO4 | bit::GUEST_TSO4;
    let required = when(!args.legacy, bit::VERSION_1)
        | when(args.packed, bit::RING_PACKED)
        | when(args.layout == Layout::Indirect, bit::INDIRECT_DESC)
        | when(args.queues > 1, bit::MQ)
        | when(args.tso, offloads);
    let features = required
        | bit::STATUS
        | when(args.legacy, bit::ANY_LAYOUT)
        | when(args.queues > 1, bit::CTRL_VQ)
        | when(!args.no_mergeable, bit::MRG_RXBUF)
        | when(!args.no_event_idx, bit::EVENT_IDX)
        | when(!args.no_indirect, bit::INDIRECT_DESC);
    FrontEndConfig {
        features,
        required,
        queue_pairs: args.queues,
        mtu: None,
        protocol: FrontEndConfig::usual_protocol(),
    }
}

/// Buffers of one ring.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Bytes of each, virtio-net header included.
    pub len: u32,
    /// The number of buffers.
    pub count: u32,
}

/// The buffers of one queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The transmit buffers.
    pub tx: Buffers,
    /// Frames that the Tx ring holds.
    pub tx_held: u32,
    /// The receive buffers.
    pub rx: Buffers,
    /// How buffers are cut into descriptors.
    pub cut: Cut,
    /// Descriptors of each indirect table; 0: none are used.
    pub entries: u16,
    /// Whether a frame may come in several buffers.
    pub mergeable: bool,
}

impl Plan {
    /// A plan for these options and negotiated features; `header` is the length of the virtio-net
    /// header.
    ///
    /// # Errors
    /// When buffers do not fit frames or rings.
    pub fn new(args: &Args, features: u64, header: u32) -> Result<Self, Error> {
        let mergeable = features & bit::MRG_RXBUF != 0;
        let any_layout = features & (bit::VERSION_1 | bit::ANY_LAYOUT) != 0;
        let default = if args.layout == Layout::Single {
            HeaderPlace::Together
        } else {
            HeaderPlace::Separate
        };
        let place = if any_layout { args.header.unwrap_or(default) } else { HeaderPlace::Separate };
        let cut = Cut {
            header: (place == HeaderPlace::Separate).then_some(header),
            piece: args.piece.unwrap_or(u32::MAX),
        };
        let tx_len = header + args.largest();
        let rx_len = args.rx_buffer.unwrap_or(match (mergeable, args.tso) {
            (true, true) => 4096,
            (true, false) => 2048,
            (false, _) => tx_len.max(2048),
        });
        if rx_len <= header || (!mergeable && rx_len < tx_len) {
            return Err(Error::Options(format!(
                "receive buffers of {rx_len} bytes do not hold a frame"
            )));
        }
        let indirect = args.layout == Layout::Indirect;
        let entries = if indirect { cut.count(tx_len).max(cut.count(rx_len)) } else { 0 };
        let entries =
            u16::try_from(entries).map_err(|_| Error::Options("too many pieces".into()))?;
        let held = |len, ring| held(if indirect { 1 } else { cut.count(len) }, ring);
        let (tx_held, rx_held) = (held(tx_len, args.ring)?, held(rx_len, args.rx_ring())?);
        Ok(Self {
            tx: Buffers { len: tx_len, count: count(args, tx_len, tx_held)? },
            tx_held,
            rx: Buffers { len: rx_len, count: count(args, rx_len, rx_held)? },
            cut,
            entries,
            mergeable,
        })
    }

    /// Bytes of guest memory for all queue pairs with their rings, with room for alignment.
    pub fn bytes<R: DriverRing>(&self, args: &Args) -> u64 {
        let ring = |size: u16| {
            let parts = R::footprint(size);
            // Twice: a part of a ring that would straddle regions moves to the next one.
            2 * (parts.desc + parts.driver + parts.device)
                + Tables::bytes(size, self.entries)
                + 4 * 4096
        };
        let buffers =
            |buffers: Buffers| Pool::stride(buffers.len) * u64::from(buffers.count) + 4096;
        let pair = ring(args.ring) + ring(args.rx_ring()) + buffers(self.tx) + buffers(self.rx);
        pair * u64::from(args.queues) + (1 << 16)
    }
}

/// The number of buffers that a ring holds if each takes `descriptors` descriptors.
fn held(descriptors: usize, ring: u16) -> Result<u32, Error> {
    match usize::from(ring) / descriptors {
        0 => Err(Error::Options(format!(
            "a buffer takes {descriptors} descriptors, the ring has {ring}"
        ))),
        held => Ok(held as u32),
    }
}

/// The number of buffers of a ring: as many as it holds, or its share of a cold pool.
fn count(args: &Args, len: u32, held: u32) -> Result<u32, Error> {
    let cold = args.pool.map_or(0, |pool| pool / u64::from(args.queues) / Pool::stride(len));
    u32::try_from(cold.max(held.into()))
        .map_err(|_| Error::Options("that pool has too many buffers".into()))
}
