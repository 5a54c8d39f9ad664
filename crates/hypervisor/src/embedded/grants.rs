//! Grants of other domains, as one domain uses them: copies and mappings.

use std::sync::Arc;

use ring::copies::{Copies, Pin, Status};
use ring::grant::Granted;
use ring::region::MappingOwner;
use ring::{Memory, Page};

use super::config::Copying;
use super::layout::{GrantKind, Reason};
use super::maptrack::HandleTable;
use super::table::{Table, Use};
use super::vcpu::Vcpu;
use super::window::Window;
use super::{Host, Refusal};
use crate::grants::{GrantError, Grants, MAX_PAGES, TransitiveGrants};
use crate::{DomId, GrantRef, PAGE};

/// `GNTST_bad_copy_arg`: beyond what was granted.
pub const BAD_COPY_ARG: Status = Status(-10);

/// Pages of other domains that one domain has mapped.
#[derive(Debug)]
pub struct Mapper {
    /// The addresses of its mappings.
    pub window: Arc<Window>,
    /// Handles of its mappings.
    pub handles: HandleTable,
}

/// A grant that is in use (Xen: `acquire_grant_for_copy`). Released when this is dropped.
#[derive(Debug)]
pub(super) struct AcquiredGrant {
    table: Arc<Table>,
    reference: GrantRef,
    how: Use,
    /// The granted pages or bytes; `None` when the grant is not in use.
    kind: Option<GrantKind>,
    /// The grant that a transitive one refers to.
    target: Option<Box<AcquiredGrant>>,
}

impl Drop for AcquiredGrant {
    fn drop(&mut self) {
        self.release();
    }
}

impl AcquiredGrant {
    fn new(
        host: &Host,
        by: DomId,
        domain: DomId,
        reference: GrantRef,
        how: Use,
    ) -> Result<AcquiredGrant, Reason> {
        let mut grant = AcquiredGrant::unacquired(host, domain, how)?;
        grant.switch_to(host, by, reference, how)?;
        Ok(grant)
    }

    /// An acquisition without a grant yet, for grants of a domain.
    fn unacquired(host: &Host, domain: DomId, how: Use) -> Result<AcquiredGrant, Reason> {
        Ok(AcquiredGrant {
            table: host.table(domain)?,
            reference: GrantRef(0),
            how,
            kind: None,
            target: None,
        })
    }

    /// Releases this grant and acquires another grant of the same domain. The domain is not looked
    /// up again, because the list of domains and the reference counts of their tables are shared by
    /// all workers.
    fn switch_to(
        &mut self,
        host: &Host,
        by: DomId,
        reference: GrantRef,
        how: Use,
    ) -> Result<(), Reason> {
        self.release();
        if let GrantKind::Transitive { domain, reference } = self.acquire(by, reference, how)? {
            let mut target = AcquiredGrant::unacquired(host, domain, how)?;
            if matches!(
                target.acquire(self.table.id(), reference, how)?,
                GrantKind::Transitive { .. }
            ) {
                return Err(Reason::NotWhole);
            }
            self.target = Some(Box::new(target));
        }
        Ok(())
    }

    fn acquire(&mut self, by: DomId, reference: GrantRef, how: Use) -> Result<GrantKind, Reason> {
        let what = self.table.acquire(by, reference, how)?;
        (self.reference, self.how, self.kind) = (reference, how, Some(what));
        Ok(what)
    }

    fn release(&mut self) {
        // The target is released first, so that its entry is free before the transitive entry is.
        self.target = None;
        if self.kind.take().is_some() {
            self.table.release(self.reference, self.how);
        }
    }

    /// The memory, and the position there of the `len` bytes from `offset` of the granted page.
    fn place(&self, offset: u16, len: u16) -> Result<(&Arc<Memory>, u64), Reason> {
        let grant = self.target.as_deref().unwrap_or(self);
        let (page, start, end) = match grant.kind {
            Some(GrantKind::Page(page)) => (page, 0, PAGE as u32),
            Some(GrantKind::SubPage { page, offset, len }) => {
                (page, u32::from(offset), u32::from(offset) + u32::from(len))
            }
            Some(GrantKind::Transitive { .. }) | None => return Err(Reason::NotWhole),
        };
        if u32::from(offset) < start || u32::from(offset) + u32::from(len) > end {
            return Err(Reason::Beyond);
        }
        Ok((grant.table.memory(), u64::from(page) * PAGE as u64 + u64::from(offset)))
    }
}

/// The domain that has mapped a grant.
#[derive(Debug)]
pub struct GrantUser {
    /// The host.
    pub host: Arc<Host>,
    /// The domain.
    pub by: DomId,
}

/// Other domains' grants, as one domain uses them.
#[derive(Debug)]
pub struct DomainGrants {
    /// The domain that uses the grants.
    pub user: GrantUser,
    /// The domain's mappings.
    pub mapper: Arc<Mapper>,
}

impl GrantUser {
    fn grant(&self, domain: DomId, reference: GrantRef, how: Use) -> Result<AcquiredGrant, Reason> {
        let grant = AcquiredGrant::new(&self.host, self.by, domain, reference, how);
        grant.map_err(|reason| self.refuse(domain, reference, reason))
    }

    /// Acquires one end of a copy, whose memory is then pinned. `last` is the grant that the
    /// previous copy used for the same end.
    pub(super) fn resolve(
        &self,
        pin: &mut Pin,
        last: &mut Option<AcquiredGrant>,
        at: Granted,
        (len, write): (u16, bool),
    ) -> Result<u64, Status> {
        let how = Use { map: false, write };
        let keeps = self.host.design.copying == Copying::Keep;
        match last.as_mut().filter(|grant| keeps && grant.table.id() == at.domain) {
            Some(grant) if grant.reference == at.reference => {}
            Some(grant) => {
                if let Err(reason) = grant.switch_to(&self.host, self.by, at.reference, how) {
                    *last = None;
                    return Err(status(self.refuse(at.domain, at.reference, reason)));
                }
            }
            None => {
                // In this order: the old grant is released first.
                *last = None;
                *last = Some(self.grant(at.domain, at.reference, how).map_err(status)?);
            }
        }
        let grant = last.as_ref().ok_or(Status::REFUSED)?;
        let place = grant.place(at.offset, len);
        let (memory, addr) =
            place.map_err(|reason| status(self.refuse(at.domain, at.reference, reason)))?;
        pin.hold(memory);
        Ok(addr)
    }

    /// Reports a use that is refused, and why.
    fn refuse(&self, domain: DomId, reference: GrantRef, reason: Reason) -> Reason {
        self.host.refuse(Refusal { by: self.by, domain, reference, reason });
        reason
    }
}

/// Xen's status for a reason (`GNTST_`).
fn status(reason: Reason) -> Status {
    match reason {
        Reason::NoDomain => Status::BAD_DOMAIN,
        Reason::Dying | Reason::NoPage => Status::BAD_PAGE,
        Reason::BeyondTable => Status::BAD_REFERENCE,
        Reason::Beyond => BAD_COPY_ARG,
        _ => Status::REFUSED,
    }
}

impl Grants for DomainGrants {
    fn map(&self, domain: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, GrantError> {
        let count = references.len();
        if !(1..=MAX_PAGES).contains(&count) {
            return Err(GrantError::Count(count));
        }
        let os = |error| GrantError::Os { what: "mapping granted pages", error };
        let refused = |_| GrantError::Refused { domain, references: references.into() };
        let mut mapped = MappedGrants {
            mapper: Arc::clone(&self.mapper),
            grants: Vec::new(),
            handles: Vec::new(),
        };
        let mut pages = Vec::new();
        for reference in references {
            let grant = self
                .user
                .grant(domain, *reference, Use { map: true, write: true })
                .map_err(refused)?;
            if let Some(GrantKind::Page(page)) = grant.kind {
                pages.push(page);
            }
            mapped.grants.push(grant);
            let handle = self.mapper.handles.get(Vcpu::enter().number());
            mapped
                .handles
                .push(handle.ok_or_else(|| os(std::io::Error::other("no handle is left")))?);
        }
        let table = mapped.grants.first().map(|grant| Arc::clone(&grant.table));
        let table = table.ok_or(GrantError::Count(0))?;
        let memory = self.mapper.window.map(&table, &pages, Box::new(mapped)).map_err(os)?;
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
        let grant =
            self.user.grant(domain, reference, Use { map: true, write }).map_err(refused)?;
        let Some(GrantKind::Page(page)) = grant.kind else { return Err(refused(Reason::NotWhole)) };
        let table = Arc::clone(&grant.table);
        let mut mapped = MappedGrants {
            mapper: Arc::clone(&self.mapper),
            grants: vec![grant],
            handles: Vec::new(),
        };
        let handle = self.mapper.handles.get(Vcpu::enter().number());
        mapped.handles.push(handle.ok_or_else(|| os(std::io::Error::other("no handle is left")))?);
        let page =
            self.mapper.window.map_page(&table, page, write, Box::new(mapped)).map_err(os)?;
        self.user.host.counts.maps.add(1);
        Ok(page)
    }

    fn copy(&self, copies: &mut Copies) -> Result<(), GrantError> {
        if !copies.is_waiting() {
            return Ok(());
        }
        let ran =
            copies.segments().iter().filter(|segment| segment.status() == Status::WAITING).count();
        let mut last = [None, None];
        copies.emulate(|pin, at, len, write| {
            self.user.resolve(pin, &mut last[usize::from(write)], at, (len, write))
        });
        drop(last);
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

    fn transitive_grants(&self) -> Option<Arc<dyn TransitiveGrants>> {
        if self.user.by != DomId(0) {
            return None;
        }
        Some(self.user.host.dom0_grants().ok()?)
    }
}

/// Grants that are mapped.
#[derive(Debug)]
struct MappedGrants {
    mapper: Arc<Mapper>,
    grants: Vec<AcquiredGrant>,
    handles: Vec<u32>,
}

impl MappingOwner for MappedGrants {}

impl Drop for MappedGrants {
    fn drop(&mut self) {
        self.grants.clear();
        self.handles.drain(..).for_each(|handle| self.mapper.handles.put(handle));
    }
}
