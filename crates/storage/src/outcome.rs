//! The consequences of a step that the kernel, or an image's thread, has finished.

use crate::command::BlockStatus;
use crate::count::ErrorReason;
use crate::request::{Operation, Request};

/// Notes that the step moved `moved` bytes. Returns whether the request is done.
pub(crate) fn advance(request: &mut Request, moved: u32) -> Result<bool, i32> {
    let done = match request.work.operation {
        Operation::Sync => return Ok(true),
        Operation::PunchHole | Operation::ZeroRange => true,
        // No byte and no error: the file ends before this place.
        _ if moved == 0 => return Err(libc::ENODATA),
        _ => request.moved(moved.into()),
    };
    if !done || !std::mem::take(&mut request.work.stable) {
        return Ok(done);
    }
    request.work.operation = Operation::Sync;
    Ok(false)
}

/// Replaces a failed step by a substitute, if it has one. Returns whether it has.
pub(crate) fn retries(request: &mut Request, errno: i32) -> bool {
    match (request.work.operation, errno) {
        (_, libc::EINTR | libc::EAGAIN) => true,
        // Zeros that the file system cannot make are written.
        (Operation::ZeroRange | Operation::PunchHole, libc::EOPNOTSUPP | libc::ENOSYS)
            if request.work.zeroes =>
        {
            request.work.operation = Operation::WriteZeros;
            true
        }
        _ => false,
    }
}

/// The guest's status for a system error, and the reason under which it counts.
pub(crate) fn failure(errno: i32) -> (BlockStatus, ErrorReason) {
    match errno {
        libc::EOPNOTSUPP => (BlockStatus::Unsupported, ErrorReason::Unsupported),
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => (BlockStatus::IoErr, ErrorReason::NoSpace),
        libc::ENODATA => (BlockStatus::IoErr, ErrorReason::Truncated),
        _ => (BlockStatus::IoErr, ErrorReason::Io),
    }
}
