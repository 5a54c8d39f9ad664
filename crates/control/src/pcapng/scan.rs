//! A scan of a passing stream of blocks: the number of packets, and the statistics.

use std::collections::BTreeMap;

use super::{
    ENHANCED_PACKET, INTERFACE_STATISTICS, ISB_FILTERACCEPT, ISB_IFDROP, ISB_IFRECV, Statistics,
};

/// Type and length of a block.
const HEADER: usize = 8;
/// Longest block of statistics that is parsed.
const LONGEST: usize = 4096;

/// Follows a stream, counts its packets, and keeps the last statistics of each interface.
#[derive(Debug, Default)]
pub struct StreamScan {
    /// The block that has begun: all of it if it has statistics, or else its header.
    block: Vec<u8>,
    /// Bytes of the block that are skipped, and have not come yet.
    skip: usize,
    packets: u64,
    last: BTreeMap<u32, Statistics>,
}

impl StreamScan {
    /// Scans the next bytes of the stream.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            let behind = bytes.get(skipped..).unwrap_or_default();
            let wanted = self.wanted() - self.block.len();
            let (now, rest) = behind.split_at(wanted.min(behind.len()));
            self.block.extend_from_slice(now);
            bytes = rest;
            self.look();
        }
    }

    /// How many packets have begun to pass.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// How many packets were lost at all interfaces, as the last statistics say.
    pub fn dropped(&self) -> u64 {
        self.last.values().fold(0, |sum, counts| sum.saturating_add(counts.dropped))
    }

    fn kind_and_len(&self) -> Option<(u32, usize)> {
        let word = |at: usize| self.block.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
        Some((word(0)?, word(4)? as usize))
    }

    /// The number of bytes of the block that must be kept.
    fn wanted(&self) -> usize {
        match self.kind_and_len() {
            Some((INTERFACE_STATISTICS, len)) if len <= LONGEST => len.max(HEADER),
            _ => HEADER,
        }
    }

    /// Continues with the next block if this one is complete.
    fn look(&mut self) {
        if self.skip > 0 || self.block.len() < self.wanted() {
            return;
        }
        let Some((kind, len)) = self.kind_and_len() else { return };
        if kind == INTERFACE_STATISTICS && self.block.len() > HEADER {
            if let Some(counts) = parse(&self.block) {
                self.last.insert(counts.interface, counts);
            }
        } else {
            self.skip = len.saturating_sub(HEADER);
            self.packets += u64::from(kind == ENHANCED_PACKET);
        }
        self.block.clear();
    }
}

/// The statistics that a block holds.
fn parse(block: &[u8]) -> Option<Statistics> {
    let half = |at: usize| block.get(at..)?.first_chunk().copied().map(u16::from_le_bytes);
    let mut counts = Statistics { interface: word(block, HEADER)?, ..Statistics::default() };
    let mut at = HEADER + 12;
    while let (Some(code @ 1..), Some(len)) = (half(at), half(at + 2)) {
        let value = block.get(at + 4..)?.first_chunk().copied().map(u64::from_le_bytes);
        match (code, len) {
            (ISB_IFRECV, 8) => counts.received = value?,
            (ISB_IFDROP, 8) => counts.dropped = value?,
            (ISB_FILTERACCEPT, 8) => counts.accepted = value?,
            _ => {}
        }
        at += 4 + usize::from(len).next_multiple_of(4);
    }
    Some(counts)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}
