//! Grant copies that a guest's virtual CPU requests, into pages of the guest's own.
//!
//! The host's design of grant locks and batches applies to these copies, too. Their cost is charged
//! to the guest.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ring::copies::{Copies, Pin, Status};
use ring::grant::Granted;
use rustix::time::{ClockId, clock_gettime};

use super::Host;
use super::grants::{BAD_COPY_ARG, GrantUser};
use super::table::Table;
use crate::hypercall::{CopyOp, Hypercalls};
use crate::{DomId, GrantRef, PAGE};

/// Copies in one call.
pub const BATCH: usize = 201;

/// Makes copies for one virtual CPU.
#[derive(Debug)]
pub struct LocalHypercalls {
    user: GrantUser,
    table: Arc<Table>,
    copies: Box<PendingCopies>,
    statuses: Vec<Status>,
}

/// Copies that have not run yet; left out of debug output.
struct PendingCopies(Copies);

impl std::fmt::Debug for PendingCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("copies")
    }
}

/// Processor time of the calling thread so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

impl LocalHypercalls {
    /// For a virtual CPU of the domain whose table this is.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(host: &Arc<Host>, table: &Arc<Table>) -> io::Result<LocalHypercalls> {
        let copies = Copies::new(BATCH, 1).map_err(io::Error::other)?;
        let user = GrantUser { host: Arc::clone(host), by: table.id() };
        let statuses = Vec::with_capacity(BATCH);
        Ok(LocalHypercalls {
            user,
            table: Arc::clone(table),
            copies: Box::new(PendingCopies(copies)),
            statuses,
        })
    }

    /// Runs the copies, at most [`BATCH`], and returns the status of each.
    pub fn run(&mut self, ops: impl IntoIterator<Item = CopyOp>) -> &[Status] {
        let own = self.table.id();
        self.statuses.clear();
        let copies = &mut self.copies.0;
        for (n, op) in (0..).zip(ops.into_iter().take(BATCH)) {
            // The target is given as a page number of the guest, so it cannot be another domain's
            // page.
            let to = Granted { domain: own, reference: GrantRef(op.page), offset: op.offset };
            let pushed = op.from.domain != DomId::SELF
                && copies.push_granted(op.from, to, op.len, n).is_ok();
            self.statuses.push(if pushed { Status::WAITING } else { BAD_COPY_ARG });
        }
        let (user, table, mut last) = (&self.user, &self.table, None);
        copies.emulate(|pin, at, len, write| match write {
            false => user.resolve(pin, &mut last, at, (len, false)),
            true => own_page(table, pin, at),
        });
        drop(last);
        let bytes = self.finish();
        let counts = &self.user.host.counts;
        counts.guest_copy_calls.add(1);
        counts.guest_copied_bytes.add(bytes);
        self.table.copy_usage().called(self.statuses.len() as u64, bytes);
        &self.statuses
    }

    /// Records the status of the copies that ran, and returns how many bytes they copied.
    fn finish(&mut self) -> u64 {
        let copies = &mut self.copies.0;
        let ran = self.statuses.iter_mut().filter(|status| **status == Status::WAITING);
        let mut bytes = 0;
        for (status, segment) in ran.zip(copies.segments()) {
            *status = segment.status();
            bytes += if status.is_done() { u64::from(segment.len()) } else { 0 };
        }
        copies.clear();
        bytes
    }

    /// The domain to which the time is charged.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }
}

/// A page that a domain has, of that number.
fn own_page(table: &Table, pin: &mut Pin, at: Granted) -> Result<u64, Status> {
    let page = at.reference.0;
    if page >= table.layout().pages {
        return Err(Status::BAD_PAGE);
    }
    pin.hold(table.memory());
    Ok(u64::from(page) * PAGE as u64 + u64::from(at.offset))
}

/// A guest in this process makes its calls directly.
impl Hypercalls for LocalHypercalls {
    fn grant_copy(&mut self, ops: &[CopyOp], outcomes: &mut Vec<Status>) -> io::Result<()> {
        let began = processor_time();
        outcomes.clear();
        for batch in ops.chunks(BATCH) {
            outcomes.extend_from_slice(self.run(batch.iter().copied()));
        }
        self.table.copy_usage().took(processor_time().saturating_sub(began), Duration::ZERO);
        Ok(())
    }
}
