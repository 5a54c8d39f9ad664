//! One request that was taken out of the ring, until it is answered.

use storage::command::{BlockStatus, Refusal};

use crate::blkif::buffers::Span;
use crate::blkif::persistent_grants::PagePlace;
use crate::blkif::request::{self, BlkRequest, Segment, What, op};

/// `BLKIF_RSP_` values.
const OKAY: i16 = 0;
const ERROR: i16 = -1;
const EOPNOTSUPP: i16 = -2;

/// One request. Used again and again, it allocates nothing.
#[derive(Debug)]
pub(super) struct Entry {
    id: u64,
    operation: u8,
    /// For discards: the rest of the range.
    pub sector: u64,
    pub what: What,
    /// The segments of its data.
    pub segments: Vec<Segment>,
    /// The mapped page of each segment; empty: the pages are not mapped.
    pub pages: Vec<PagePlace>,
    /// The place of its data in this process.
    pub span: Span,
    /// Bytes of its data.
    pub bytes: u32,
    /// Why it is not carried out.
    pub refusal: Option<Refusal>,
    pub status: BlockStatus,
    /// Parts of it that are with the pipeline.
    under_way: u32,
    /// The pipeline has all parts that are not done.
    handed_out: bool,
}

impl Default for Entry {
    fn default() -> Self {
        Entry {
            id: 0,
            operation: op::READ,
            sector: 0,
            what: What::Flush,
            segments: Vec::new(),
            pages: Vec::new(),
            span: Span::default(),
            bytes: 0,
            refusal: None,
            status: BlockStatus::Ok,
            under_way: 0,
            handed_out: false,
        }
    }
}

impl Entry {
    /// Begins with a request whose data goes to `span`.
    pub fn begin(&mut self, request: BlkRequest, span: Span) {
        let BlkRequest { id, operation, sector, what } = request;
        (self.id, self.operation, self.sector, self.what) = (id, operation, sector, what);
        self.segments.clear();
        self.pages.clear();
        (self.span, self.bytes, self.status) = (span, 0, BlockStatus::Ok);
        self.refusal = match what {
            What::Refused(refusal) => Some(refusal),
            _ => None,
        };
        (self.under_way, self.handed_out) = (0, false);
    }

    /// Reads its segments. `None`: they could not be copied.
    pub fn read_segments(&mut self, bytes: Option<&[u8]>) {
        match request::read_segments(bytes.unwrap_or_default(), &mut self.segments) {
            Ok(bytes) => self.bytes = bytes,
            Err(refusal) => self.refusal = Some(refusal),
        }
    }

    /// Whether the pages of its data are mapped.
    pub fn is_mapped(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Whether its data comes from the guest.
    pub fn writes(&self) -> bool {
        self.refusal.is_none() && matches!(self.what, What::Data { write: true, .. })
    }

    /// Whether its data goes to the guest.
    pub fn reads(&self) -> bool {
        self.refusal.is_none() && matches!(self.what, What::Data { write: false, .. })
    }

    /// Notes that a part was handed to the pipeline. True when no part is left.
    pub fn handed_out(&mut self) -> bool {
        self.under_way += 1;
        let left = matches!(self.what, What::Discard(left) if left > 0);
        self.handed_out = !left || self.refusal.is_some();
        self.handed_out
    }

    /// Notes that a part is done, with a status of virtio-blk. True when the whole request is.
    pub fn part_done(&mut self, status: u8) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        if self.status == BlockStatus::Ok {
            self.status = match status {
                0 => BlockStatus::Ok,
                2 => BlockStatus::Unsupported,
                _ => BlockStatus::IoErr,
            };
        }
        self.is_done()
    }

    /// Whether it can be answered.
    pub fn is_done(&self) -> bool {
        self.handed_out && self.under_way == 0
    }

    /// Fields of the response (number, operation, status), and the room to be freed.
    pub fn end(&mut self) -> (u64, u8, i16, Span) {
        self.handed_out = false;
        let status = match self.status {
            BlockStatus::Ok => OKAY,
            BlockStatus::IoErr => ERROR,
            BlockStatus::Unsupported => EOPNOTSUPP,
        };
        (self.id, self.operation, status, self.span)
    }
}
