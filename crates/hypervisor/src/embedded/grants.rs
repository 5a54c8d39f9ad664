//! Other domains' grants, as one domain uses them.

use std::sync::Arc;

use ring::copies::{Copies, Pin, Status};
use ring::grant::Granted;
use ring::region::Keeper;
use ring::{Memory, Page};

use super::config::Copying;
use super::layout::{Reason, What};
use super::maptrack::Handles;
use super::table::{Table, Use};
use super::vcpu::Vcpu;
use super::window::Window;
use super::{Host, Refusal};
use crate::grants::{GrantError, Grants, Lender, MAX_PAGES};
use crate::{DomId, GrantRef, PAGE};

/// `GNTST_bad_copy_arg`: beyond what was granted.
pub const BEYOND: Status = Status(-10);

/// What one domain has mapped of others.
#[derive(Debug)]
pub struct Mapper {
    /// Where it is mapped.
    pub window: Arc<Window>,
    /// Handles of its mappings.
    pub handles: Handles,
}

/// A grant that is being used.
#[derive(Debug)]
pub(super) struct Claim {
    table: Arc<Table>,
    reference: GrantRef,
    how: Use,
    /// What it grants; nothing if it is not used any more.
    what: Option<What>,
    /// The grant that it passes on.
    behind: Option<Box<Claim>>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end();
    }
}

impl Claim {
    fn new(
        host: &Host,
        by: DomId,
        domain: DomId,
        reference: GrantRef,
        how: Use,
    ) -> Result<Claim, Reason> {
        let mut claim = Claim::none(host, domain, how)?;
        claim.turn_to(host, by, reference, how)?;
        Ok(claim)
    }

    /// Of a domain's grants, none yet.
    fn none(host: &Host, domain: DomId, how: Use) -> Result<Claim, Reason> {
        Ok(Claim {
            table: host.table(domain)?,
            reference: GrantRef(0),
            how,
            what: None,
            behind: None,
        })
    }

    /// Uses another grant of the same domain instead. Whose grants they are is not looked up again:
    /// the list of all domains, and the count of those who have a domain's table, are shared by
    /// all workers.
    fn turn_to(
        &mut self,
        host: &Host,
        by: DomId,
        reference: GrantRef,
        how: Use,
    ) -> Result<(), Reason> {
        self.end();
        if let What::Through { domain, reference } = self.begin(by, reference, how)? {
            let mut behind = Claim::none(host, domain, how)?;
            if matches!(behind.begin(self.table.id(), reference, how)?, What::Through { .. }) {
                return Err(Reason::NotWhole);
            }
            self.behind = Some(Box::new(behind));
        }
        Ok(())
    }

    fn begin(&mut self, by: DomId, reference: GrantRef, how: Use) -> Result<What, Reason> {
        let what = self.table.acquire(by, reference, how)?;
        (self.reference, self.how, self.what) = (reference, how, Some(what));
        Ok(what)
    }

    fn end(&mut self) {
        // What lies behind is free first: whoever passes it on says so as soon as its own entry is.
        self.behind = None;
        if self.what.take().is_some() {
            self.table.release(self.reference, self.how);
        }
    }

    /// The memory, and where in it `len` bytes from `offset` of the granted page on are.
    fn place(&self, offset: u16, len: u16) -> Result<(&Arc<Memory>, u64), Reason> {
        let claim = self.behind.as_deref().unwrap_or(self);
        let (page, start, end) = match claim.what {
            Some(What::Page(page)) => (page, 0, PAGE as u32),
            Some(What::Part { page, offset, len }) => {
                (page, u32::from(offset), u32::from(offset) + u32::from(len))
            }
            Some(What::Through { .. }) | None => return Err(Reason::NotWhole),
        };
        if u32::from(offset) < start || u32::from(offset) + u32::from(len) > end {
            return Err(Reason::Beyond);
        }
        Ok((claim.table.memory(), u64::from(page) * PAGE as u64 + u64::from(offset)))
    }
}

/// Who uses other domains' grants.
#[derive(Debug)]
pub struct User {
    /// Where.
    pub host: Arc<Host>,
    /// Who.
    pub by: DomId,
}

/// Other domains' grants as one can use them.
#[derive(Debug)]
pub struct Of {
    /// Who.
    pub user: User,
    /// What it has mapped.
    pub mapper: Arc<Mapper>,
}

impl User {
    fn claim(&self, domain: DomId, reference: GrantRef, how: Use) -> Result<Claim, Reason> {
        let claim = Claim::new(&self.host, self.by, domain, reference, how);
        claim.map_err(|reason| self.refuse(domain, reference, reason))
    }

    /// One end of a copy, whose memory is pinned; `held` is the grant that the copy before used for
    /// the same end.
    pub(super) fn resolve(
        &self,
        pin: &mut Pin,
        held: &mut Option<Claim>,
        at: Granted,
        (len, write): (u16, bool),
    ) -> Result<u64, Status> {
        let how = Use { map: false, write };
        let keeps = self.host.design.copying == Copying::Keep;
        match held.as_mut().filter(|claim| keeps && claim.table.id() == at.domain) {
            Some(claim) if claim.reference == at.reference => {}
            Some(claim) => {
                if let Err(reason) = claim.turn_to(&self.host, self.by, at.reference, how) {
                    *held = None;
                    return Err(status(self.refuse(at.domain, at.reference, reason)));
                }
            }
            None => {
                // In this order: what was used is free first.
                *held = None;
                *held = Some(self.claim(at.domain, at.reference, how).map_err(status)?);
            }
        }
        let claim = held.as_ref().ok_or(Status::REFUSED)?;
        let place = claim.place(at.offset, len);
        let (memory, addr) =
            place.map_err(|reason| status(self.refuse(at.domain, at.reference, reason)))?;
        pin.hold(memory);
        Ok(addr)
    }

    /// Tells of a use that is refused, and why.
    fn refuse(&self, domain: DomId, reference: GrantRef, reason: Reason) -> Reason {
        self.host.refuse(Refusal { by: self.by, domain, reference, reason });
        reason
    }
}

/// What Xen says of it.
fn status(reason: Reason) -> Status {
    match reason {
        Reason::NoDomain => Status::BAD_DOMAIN,
        Reason::Dying | Reason::NoPage => Status::BAD_PAGE,
        Reason::BeyondTable => Status::BAD_REFERENCE,
        Reason::Beyond => BEYOND,
        _ => Status::REFUSED,
    }
}

impl Grants for Of {
    fn map(&self, domain: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, GrantError> {
        let count = references.len();
        if !(1..=MAX_PAGES).contains(&count) {
            return Err(GrantError::Count(count));
        }
        let os = |error| GrantError::Os { what: "mapping granted pages", error };
        let refused = |_| GrantError::Refused { domain, references: references.into() };
        let mut uses =
            Uses { mapper: Arc::clone(&self.mapper), claims: Vec::new(), handles: Vec::new() };
        let mut pages = Vec::new();
        for reference in references {
            let claim = self
                .user
                .claim(domain, *reference, Use { map: true, write: true })
                .map_err(refused)?;
            if let Some(What::Page(page)) = claim.what {
                pages.push(page);
            }
            uses.claims.push(claim);
            let handle = self.mapper.handles.get(Vcpu::enter().number());
            uses.handles
                .push(handle.ok_or_else(|| os(std::io::Error::other("no handle is left")))?);
        }
        let table = uses.claims.first().map(|claim| Arc::clone(&claim.table));
        let table = table.ok_or(GrantError::Count(0))?;
        let memory = self.mapper.window.map(&table, &pages, Box::new(uses)).map_err(os)?;
        self.user.host.counts.maps.add(count as u64);
        Ok(Arc::new(memory))
    }

    fn map_page(
        &self,
        domain: DomId,
        reference: GrantRef,
        write: bool,
    ) -> Result<Page, GrantError> {
        let os = |error| GrantError::Os { what: "mapping a granted page", error };
        let refused = |_| GrantError::Page { domain, reference, write };
        let claim =
            self.user.claim(domain, reference, Use { map: true, write }).map_err(refused)?;
        let Some(What::Page(page)) = claim.what else { return Err(refused(Reason::NotWhole)) };
        let table = Arc::clone(&claim.table);
        let mut uses =
            Uses { mapper: Arc::clone(&self.mapper), claims: vec![claim], handles: Vec::new() };
        let handle = self.mapper.handles.get(Vcpu::enter().number());
        uses.handles.push(handle.ok_or_else(|| os(std::io::Error::other("no handle is left")))?);
        let page = self.mapper.window.map_page(&table, page, write, Box::new(uses)).map_err(os)?;
        self.user.host.counts.maps.add(1);
        Ok(page)
    }

    fn copy(&self, copies: &mut Copies) -> Result<(), GrantError> {
        if !copies.is_waiting() {
            return Ok(());
        }
        let ran =
            copies.segments().iter().filter(|segment| segment.status() == Status::WAITING).count();
        let mut held = [None, None];
        copies.emulate(|pin, at, len, write| {
            self.user.resolve(pin, &mut held[usize::from(write)], at, (len, write))
        });
        drop(held);
        let (mut done, mut both, mut bytes) = (0, 0, 0);
        for segment in
            copies.segments().iter().rev().take(ran).filter(|segment| segment.status().is_done())
        {
            done += 1;
            both += u64::from(segment.source().is_some() && segment.target().is_some());
            bytes += u64::from(segment.len());
        }
        let counts = &self.user.host.counts;
        counts.batches.add(1);
        counts.copies.add(done);
        counts.both_granted.add(both);
        counts.bytes.add(bytes);
        Ok(())
    }

    fn lender(&self) -> Option<Arc<dyn Lender>> {
        if self.user.by != DomId(0) {
            return None;
        }
        Some(self.user.host.own().ok()?)
    }
}

/// Grants that are mapped.
#[derive(Debug)]
struct Uses {
    mapper: Arc<Mapper>,
    claims: Vec<Claim>,
    handles: Vec<u32>,
}

impl Keeper for Uses {}

impl Drop for Uses {
    fn drop(&mut self) {
        self.claims.clear();
        self.handles.drain(..).for_each(|handle| self.mapper.handles.put(handle));
    }
}
