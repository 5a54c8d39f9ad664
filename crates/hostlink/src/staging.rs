//! Private memory for frames whose bytes lie in granted pages. The kernel can only read mapped
//! memory.

use std::sync::Arc;

use network::burst::MAX_FRAME;
use ring::copies::{Copies, Status};
use ring::gather::{Body, Gather};
use ring::region::Memory;

/// Pieces that a frame in granted pages may have.
const PIECES: usize = 1024;
/// Bytes of the memory: the longest frame, in whole pages.
const BYTES: usize = (MAX_FRAME as usize).next_multiple_of(4096);

/// Room for one frame.
pub(crate) struct Staging {
    memory: Arc<Memory>,
    copies: Copies,
    gather: Gather,
}

impl Staging {
    /// Empty room; `None`: there is no memory.
    pub(crate) fn new() -> Option<Box<Self>> {
        let memory = Arc::new(Memory::anonymous(BYTES).ok()?);
        let copies = Copies::new(PIECES, 1).ok()?;
        Some(Box::new(Staging { memory, copies, gather: Gather::new(0) }))
    }

    /// Copies `body`, and returns the copy.
    ///
    /// # Errors
    /// The status of the copy that failed.
    pub(crate) fn bring(&mut self, body: Body<'_>) -> Result<Body<'_>, Status> {
        body.bring(&mut self.copies, &self.memory, 0)?;
        self.gather.clear();
        let chain = self.gather.push_range(&self.memory, 0, body.len());
        Ok(self.gather.body(chain.map_err(|_| Status::BAD_PAGE)?))
    }
}
