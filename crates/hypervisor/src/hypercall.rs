//! Copies that a domain has its hypervisor make on its own account: out of what it was granted,
//! into pages of its own.

use std::fmt::Debug;
use std::io;

use ring::copies::Status;

use crate::Granted;

/// One copy; both ends lie within a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOp {
    /// From where.
    pub from: Granted,
    /// To which page of its own.
    pub page: u32,
    /// To where in that.
    pub offset: u16,
    /// How many bytes.
    pub len: u16,
}

/// A virtual CPU's way into the hypervisor (`GNTTABOP_copy`). The time that it takes is the
/// domain's.
pub trait Hypercalls: Debug + Send {
    /// Makes copies, in one call if there are not too many; `outcomes` is what became of each. One
    /// that fails does not keep the others from being made.
    ///
    /// # Errors
    /// When the hypervisor is gone.
    fn grant_copy(&mut self, ops: &[CopyOp], outcomes: &mut Vec<Status>) -> io::Result<()>;
}
