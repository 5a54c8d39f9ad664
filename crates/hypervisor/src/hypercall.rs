//! Hypercalls of a domain's virtual CPUs: grant copies into pages of its own.

use std::fmt::Debug;
use std::io;

use ring::copies::Status;
use ring::grant::Granted;

/// One copy (`struct gnttab_copy`); both ends lie within a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOp {
    /// The granted source.
    pub from: Granted,
    /// The target: the frame number of a page of its own.
    pub page: u32,
    /// The first byte in that page.
    pub offset: u16,
    /// The number of bytes.
    pub len: u16,
}

/// The hypercalls of one virtual CPU. Their processor time is charged to the domain.
pub trait Hypercalls: Debug + Send {
    /// Makes copies (`GNTTABOP_copy`), in one call if there are not too many. `outcomes` is
    /// replaced by the status of each; a copy that fails does not end the batch.
    ///
    /// # Errors
    /// When the hypervisor can't be reached.
    fn grant_copy(&mut self, ops: &[CopyOp], outcomes: &mut Vec<Status>) -> io::Result<()>;
}
