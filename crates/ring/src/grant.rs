//! Xen grants, which name another domain's pages (xen/include/public/grant_table.h).

use std::fmt;

/// Bytes of a granted page, whatever the page size of either kernel.
pub const PAGE: usize = 4096;

/// A domain, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomId(pub u16);

impl DomId {
    /// The calling domain itself (`DOMID_SELF`).
    pub const SELF: DomId = DomId(0x7ff0);
}

impl fmt::Display for DomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An entry of a domain's grant table: one of its pages that one other domain may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantRef(pub u32);

impl fmt::Display for GrantRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A place in a page that another domain granted. Whether the grant exists and allows its use is
/// only known when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The domain that granted the page.
    pub domain: DomId,
    /// The grant of the page.
    pub reference: GrantRef,
    /// Offset in the page, in bytes.
    pub offset: u16,
}
