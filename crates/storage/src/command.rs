//! The header of a request, parsed and checked (virtio 1.2, 5.2.6).
//!
//! Sectors have 512 bytes for any block size. Nothing here touches a guest's memory or a file.

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes of a request's header: le32 type, reserved le32, le64 sector.
pub const HEADER: usize = 16;
/// Bytes of the range of a discard or of write zeroes: le64 sector, le32 sectors, le32 flags.
pub const RANGE: usize = 16;
/// Bytes of a disk's serial number, padded with zeros.
pub const SERIAL: usize = 20;

/// Most sectors of one discard: 1 GiB.
pub const MOST_DISCARDED: u32 = 1 << 21;
/// Most sectors of one request to write zeroes: 16 MiB, which may have to be written.
pub const MOST_ZEROED: u32 = 1 << 15;

/// Type of a request: read.
pub const IN: u32 = 0;
/// Type of a request: write.
pub const OUT: u32 = 1;
/// Type of a request: make completed writes stable.
pub const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
/// Type of a request: discard the contents of a range.
pub const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// Bit 0 of a range's flags: the sectors may be deallocated.
const UNMAP: u32 = 1;

/// How a request ended (virtio 1.2, 5.2.6: the status byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockStatus {
    /// The request was carried out.
    Ok = 0,
    /// The request failed.
    IoErr = 1,
    /// The request is not supported.
    Unsupported = 2,
}

/// A request, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read into the request's buffers, from this byte on.
    Read(u64),
    /// Write the request's buffers, from this byte on.
    Write(u64),
    /// Make all completed writes stable.
    Flush,
    /// Copy the serial number.
    GetId,
    /// Discard the contents of a range: first byte and length in bytes.
    Discard(u64, u64),
    /// Make a range read as zeros; it may be deallocated, or not.
    WriteZeroes(u64, u64, bool),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A type or a flag that is not offered.
    Unsupported,
    /// The request reaches beyond the end of the disk.
    OutOfRange,
    /// Its data is not a whole number of sectors, or not one range.
    BadLength,
    /// The request begins or ends within a block.
    Unaligned,
    /// The request would change a disk that is read-only.
    ReadOnly,
    /// Its data is in a page that the guest has not granted.
    Grant,
}

impl Refusal {
    /// The status that the guest gets.
    pub fn status(self) -> BlockStatus {
        match self {
            Refusal::Unsupported => BlockStatus::Unsupported,
            _ => BlockStatus::IoErr,
        }
    }
}

/// The limits that a disk sets to requests.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Its length in bytes.
    pub bytes: u64,
    /// The disk is read-only.
    pub read_only: bool,
    /// Bytes of a block, which all requests are aligned to: a power of two, 512 or more.
    pub block: u32,
}

impl Bounds {
    /// Checks a range that begins at `sector`. Returns its first byte.
    fn check(&self, sector: u64, bytes: u64) -> Result<u64, Refusal> {
        let first = sector.checked_mul(SECTOR).ok_or(Refusal::OutOfRange)?;
        let end = first.checked_add(bytes).ok_or(Refusal::OutOfRange)?;
        if end > self.bytes {
            return Err(Refusal::OutOfRange);
        }
        match (first | end) & (u64::from(self.block) - 1) {
            0 => Ok(first),
            _ => Err(Refusal::Unaligned),
        }
    }

    fn check_change(&self) -> Result<(), Refusal> {
        if self.read_only { Err(Refusal::ReadOnly) } else { Ok(()) }
    }
}

fn u32_at(bytes: &[u8; 16], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8; 16], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u64::from_le_bytes)
}

/// Parses a request with this `header`. `readable`: bytes of data from the driver; `writable`:
/// bytes of room for data to the driver. `range` copies out the data of a request for a range.
///
/// # Errors
/// The reason why it is refused.
pub fn parse(
    header: &[u8; HEADER],
    (readable, writable): (u64, u64),
    bounds: Bounds,
    range: impl FnOnce() -> Option<[u8; RANGE]>,
) -> Result<Command, Refusal> {
    let (kind, sector) = (u32_at(header, 0), u64_at(header, 8));
    let whole = |bytes: u64| match bytes.is_multiple_of(SECTOR) && bytes > 0 {
        true => Ok(bytes),
        false => Err(Refusal::BadLength),
    };
    match kind {
        IN => Ok(Command::Read(bounds.check(sector, whole(writable)?)?)),
        OUT => {
            bounds.check_change()?;
            Ok(Command::Write(bounds.check(sector, whole(readable)?)?))
        }
        FLUSH => Ok(Command::Flush),
        GET_ID => Ok(Command::GetId),
        DISCARD | WRITE_ZEROES => {
            bounds.check_change()?;
            if readable != RANGE as u64 {
                return Err(Refusal::BadLength);
            }
            let range = range().ok_or(Refusal::BadLength)?;
            parse_range(kind == DISCARD, &range, bounds)
        }
        _ => Err(Refusal::Unsupported),
    }
}

fn parse_range(discard: bool, range: &[u8; RANGE], bounds: Bounds) -> Result<Command, Refusal> {
    let (sector, sectors, flags) = (u64_at(range, 0), u32_at(range, 8), u32_at(range, 12));
    let allowed = if discard { 0 } else { UNMAP };
    if flags & !allowed != 0 {
        return Err(Refusal::Unsupported);
    }
    let most = if discard { MOST_DISCARDED } else { MOST_ZEROED };
    if sectors > most {
        return Err(Refusal::BadLength);
    }
    let len = u64::from(sectors) * SECTOR;
    let first = bounds.check(sector, len)?;
    Ok(match discard {
        true => Command::Discard(first, len),
        false => Command::WriteZeroes(first, len, flags & UNMAP != 0),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: 1 << 20, read_only: false, block: 512 };

    fn header(kind: u32, sector: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }

    fn range(sector: u64, sectors: u32, flags: u32) -> [u8; RANGE] {
        let mut range = [0; RANGE];
        range[..8].copy_from_slice(&sector.to_le_bytes());
        range[8..12].copy_from_slice(&sectors.to_le_bytes());
        range[12..].copy_from_slice(&flags.to_le_bytes());
        range
    }

    fn data(kind: u32, sector: u64, bytes: u64) -> Result<Command, Refusal> {
        let lengths = if kind == OUT { (bytes, 0) } else { (0, bytes) };
        parse(&header(kind, sector), lengths, BOUNDS, || None)
    }

    fn ranged(kind: u32, range: [u8; RANGE]) -> Result<Command, Refusal> {
        parse(&header(kind, 0), (RANGE as u64, 0), BOUNDS, || Some(range))
    }

    #[test]
    fn data_lies_within_the_disk() {
        assert_eq!(data(IN, 2, 512), Ok(Command::Read(1024)));
        assert_eq!(data(OUT, 2047, 512), Ok(Command::Write(2047 * 512)));
        for (sector, bytes) in [(2047, 1024), (2048, 512), (u64::MAX, 512), (u64::MAX / 512, 512)] {
            assert_eq!(data(IN, sector, bytes), Err(Refusal::OutOfRange), "{sector}");
            assert_eq!(data(OUT, sector, bytes), Err(Refusal::OutOfRange), "{sector}");
        }
        assert_eq!(data(IN, 0, u64::MAX - 511), Err(Refusal::OutOfRange));
        assert_eq!(
            (data(IN, 0, 0), data(OUT, 0, 100)),
            (Err(Refusal::BadLength), Err(Refusal::BadLength))
        );
    }

    #[test]
    fn ranges_have_known_flags_and_bounded_lengths() {
        assert_eq!(ranged(DISCARD, range(1, 8, 0)), Ok(Command::Discard(512, 4096)));
        assert_eq!(ranged(DISCARD, range(1, 8, UNMAP)), Err(Refusal::Unsupported));
        assert_eq!(
            ranged(WRITE_ZEROES, range(1, 8, UNMAP)),
            Ok(Command::WriteZeroes(512, 4096, true))
        );
        assert_eq!(ranged(WRITE_ZEROES, range(1, 8, 2)), Err(Refusal::Unsupported));
        assert_eq!(ranged(DISCARD, range(2041, 8, 0)), Err(Refusal::OutOfRange));
        assert_eq!(ranged(WRITE_ZEROES, range(0, u32::MAX, 0)), Err(Refusal::BadLength));
        let two = parse(&header(DISCARD, 0), (2 * RANGE as u64, 0), BOUNDS, || None);
        assert_eq!(two, Err(Refusal::BadLength));
    }

    #[test]
    fn a_read_only_disk_takes_reads_and_flushes() {
        let bounds = Bounds { read_only: true, ..BOUNDS };
        let parse =
            |kind, lengths| parse(&header(kind, 0), lengths, bounds, || Some(range(0, 8, 0)));
        assert_eq!(parse(IN, (0, 512)), Ok(Command::Read(0)));
        assert_eq!(parse(FLUSH, (0, 0)), Ok(Command::Flush));
        for kind in [OUT, DISCARD, WRITE_ZEROES] {
            assert_eq!(parse(kind, (RANGE as u64, 0)), Err(Refusal::ReadOnly));
        }
        assert_eq!(Refusal::ReadOnly.status(), BlockStatus::IoErr);
    }

    #[test]
    fn requests_are_aligned_to_blocks() {
        let bounds = Bounds { block: 4096, ..BOUNDS };
        let data = |sector, bytes| parse(&header(IN, sector), (0, bytes), bounds, || None);
        assert_eq!(data(8, 4096), Ok(Command::Read(4096)));
        for (sector, bytes) in [(1, 4096), (8, 512), (9, 3584), (0, 4608)] {
            assert_eq!(data(sector, bytes), Err(Refusal::Unaligned), "{sector} {bytes}");
        }
        assert_eq!(data(2041, 4096), Err(Refusal::OutOfRange));
        for kind in [DISCARD, WRITE_ZEROES] {
            let ask = |range| parse(&header(kind, 0), (RANGE as u64, 0), bounds, || Some(range));
            assert!(ask(range(8, 16, 0)).is_ok());
            assert_eq!(ask(range(8, 1, 0)), Err(Refusal::Unaligned));
            assert_eq!(ask(range(4, 8, 0)), Err(Refusal::Unaligned));
        }
    }

    #[test]
    fn other_types_are_not_supported() {
        for kind in [2, 3, 5, 7, 9, 10, 12, 14, 24, u32::MAX] {
            assert_eq!(data(kind, 0, 512), Err(Refusal::Unsupported), "{kind}");
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_lies_within_the_disk(
            header in any::<[u8; HEADER]>(),
            kind in 0u32..16,
            lengths in (0u64..1 << 33, 0u64..1 << 33),
            range in any::<[u8; RANGE]>(),
        ) {
            let mut header = header;
            header[..4].copy_from_slice(&kind.to_le_bytes());
            let end = match parse(&header, lengths, BOUNDS, || Some(range)) {
                Ok(Command::Read(first)) => first.checked_add(lengths.1),
                Ok(Command::Write(first)) => first.checked_add(lengths.0),
                Ok(Command::Discard(first, len) | Command::WriteZeroes(first, len, _)) => first.checked_add(len),
                Ok(Command::Flush | Command::GetId) | Err(_) => Some(0),
            };
            prop_assert!(end.is_some_and(|end| end <= BOUNDS.bytes));
        }
    }
}
