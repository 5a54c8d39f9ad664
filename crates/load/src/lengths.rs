//! Lengths of mixed frames.

/// Lengths as on the Internet, in the usual proportion of 7, 4 and 1: packets of 40 bytes (the
/// shortest frame here), 576 and 1500 bytes.
pub const MIX: [u32; 12] = [64, 590, 64, 64, 590, 64, 1514, 64, 590, 64, 590, 64];
