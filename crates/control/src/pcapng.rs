//! The file format pcapng: the blocks that a capture consists of.
//!
//! Blocks are written in little-endian byte order on every machine. Only blocks as written here can
//! be read. Numbers of blocks and options are those of draft-ietf-opsawg-pcapng.

mod scan;

pub use scan::StreamScan;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// The length of a section that is not known.
const UNKNOWN_LENGTH: u64 = u64::MAX;
/// Ethernet.
const LINK_TYPE: u16 = 1;

const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
const ISB_FILTERACCEPT: u16 = 6;

/// Bits of `EPB_FLAGS`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Times are in nanoseconds: ten to the minus ninth.
const NANOSECONDS: u8 = 9;

/// Longest value of an option: a longer comment is cut.
const LONGEST_OPTION: usize = 1024;

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The number of its interface, in the order in which interfaces were written.
    pub interface: u32,
    /// Nanoseconds since the epoch of Unix.
    pub time: u64,
    /// Whether it was on its way from the interface's owner, and not to it.
    pub outbound: bool,
    /// Its length in bytes.
    pub len: u32,
    /// Its first bytes.
    pub bytes: &'a [u8],
    /// Remarks, a line each.
    pub comments: &'a [String],
}

/// The counts of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// The number of the interface.
    pub interface: u32,
    /// The start of counting, in nanoseconds since the Unix epoch.
    pub from: u64,
    /// The end of counting, in nanoseconds since the Unix epoch.
    pub to: u64,
    /// Packets that passed.
    pub received: u64,
    /// Frames that the filter accepted.
    pub accepted: u64,
    /// Frames that were lost.
    pub dropped: u64,
}

/// Begins a file, which `application` writes.
pub fn section(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend(1u16.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(UNKNOWN_LENGTH.to_le_bytes());
        option(out, SHB_USERAPPL, application.as_bytes());
        end_of_options(out);
    });
}

/// Describes the next interface. All have to be described before the first packet.
pub fn interface(out: &mut Vec<u8>, name: &str, snaplen: u32) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend(LINK_TYPE.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(snaplen.to_le_bytes());
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[NANOSECONDS]);
        end_of_options(out);
    });
}

/// Writes a packet.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    block(out, ENHANCED_PACKET, |out| {
        out.extend(packet.interface.to_le_bytes());
        out.extend(time(packet.time));
        out.extend((packet.bytes.len() as u32).to_le_bytes());
        out.extend(packet.len.to_le_bytes());
        padded(out, packet.bytes);
        let flags = if packet.outbound { OUTBOUND } else { INBOUND };
        option(out, EPB_FLAGS, &flags.to_le_bytes());
        packet.comments.iter().for_each(|comment| option(out, OPT_COMMENT, comment.as_bytes()));
        end_of_options(out);
    });
}

/// Writes the counts of an interface so far.
pub fn statistics(out: &mut Vec<u8>, counts: &Statistics) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend(counts.interface.to_le_bytes());
        out.extend(time(counts.to));
        option(out, ISB_STARTTIME, &time(counts.from));
        option(out, ISB_ENDTIME, &time(counts.to));
        option(out, ISB_IFRECV, &counts.received.to_le_bytes());
        option(out, ISB_IFDROP, &counts.dropped.to_le_bytes());
        option(out, ISB_FILTERACCEPT, &counts.accepted.to_le_bytes());
        end_of_options(out);
    });
}

/// A time: its upper half, then its lower one.
fn time(nanoseconds: u64) -> [u8; 8] {
    nanoseconds.rotate_left(32).to_le_bytes()
}

/// Writes a block. Its length comes before and behind its body.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let len = ((out.len() - start + 4) as u32).to_le_bytes();
    out.extend(len);
    if let Some(place) = out.get_mut(start + 4..start + 8) {
        place.copy_from_slice(&len);
    }
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..LONGEST_OPTION).unwrap_or(value);
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    padded(out, value);
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend([0; 4]);
}

/// Writes bytes, and zeros up to a multiple of four bytes.
fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
}

#[cfg(test)]
mod tests;
