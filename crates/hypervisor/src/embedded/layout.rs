//! The layout of a domain's memory, and of grant entries (xen/include/public/grant_table.h).
//!
//! The domain's own pages come first, so that page n is at address 4096 n. The pages that are
//! shared with the hypervisor follow: one page with the words of event channels, the grant table
//! with its status words, and the pages through which calls are made.

use std::fmt;

use crate::{DomId, GrantRef, PAGE};

/// References below are Xen's own.
pub const RESERVED: u32 = 8;

/// Pages that a grant table can grow to.
pub const FRAMES: u32 = 64;

/// Entries in a page of status words.
const STATUSES: u32 = (PAGE / 2) as u32;

/// Pages of status words.
const STATUS_FRAMES: u32 = (FRAMES * Version::V2.per_frame()).div_ceil(STATUSES);

/// Event channels that a domain can have open: 16 queues need 33. Each has its words in a page.
pub const CHANNELS: u32 = 128;

/// Virtual CPUs that can make grant copies: 16 queues have one each. Each has a page for its calls.
pub const CALLERS: u32 = 16;

/// The layout of grant entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// Eight bytes: whole pages, with the status among the flags.
    #[default]
    V1,
    /// Sixteen bytes: also parts of pages, and other domains' grants passed on; the status is kept
    /// apart.
    V2,
}

impl Version {
    /// Bytes of an entry.
    pub const fn entry(self) -> u32 {
        match self {
            Version::V1 => 8,
            Version::V2 => 16,
        }
    }

    /// Entries in a page of the table.
    pub const fn per_frame(self) -> u32 {
        PAGE as u32 / self.entry()
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
        }
    }

    /// The one of that number.
    pub const fn of(number: u32) -> Option<Version> {
        match number {
            1 => Some(Version::V1),
            2 => Some(Version::V2),
            _ => None,
        }
    }
}

/// `GTF_` flags.
pub mod flag {
    pub const TYPE: u16 = 3;
    pub const INVALID: u16 = 0;
    pub const PERMIT: u16 = 1;
    pub const TRANSITIVE: u16 = 3;
    pub const READ_ONLY: u16 = 1 << 2;
    pub const READING: u16 = 1 << 3;
    pub const WRITING: u16 = 1 << 4;
    pub const SUB_PAGE: u16 = 1 << 8;
}

/// The layout of the memory of a domain with so many pages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Pages of its own.
    pub pages: u32,
}

impl Layout {
    /// All pages.
    pub const fn total(self) -> usize {
        self.pages as usize + (1 + FRAMES + STATUS_FRAMES + CALLERS) as usize
    }

    const fn shared(self, page: u32, at: u32) -> u64 {
        (self.pages as u64 + page as u64) * PAGE as u64 + at as u64
    }

    /// The word of one side of channel number `slot`: side 0 belongs to the domain, side 1 to the
    /// other end.
    pub const fn channel(self, slot: u32, side: u32) -> u64 {
        self.shared(0, slot % CHANNELS * 8 + side % 2 * 4)
    }

    /// A grant entry.
    pub const fn entry(self, version: Version, reference: GrantRef) -> u64 {
        self.shared(1, 0) + reference.0 as u64 * version.entry() as u64
    }

    /// The status word of a grant entry of version 2.
    pub const fn status(self, reference: GrantRef) -> u64 {
        self.shared(1 + FRAMES, 0) + reference.0 as u64 * 2
    }

    /// The page that a virtual CPU calls through.
    pub const fn call(self, vcpu: u32) -> u64 {
        self.shared(1 + FRAMES + STATUS_FRAMES + vcpu % CALLERS, 0)
    }
}

/// The kind of grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantKind {
    /// A page.
    Page(u32),
    /// Bytes of a page.
    SubPage {
        /// The page.
        page: u32,
        /// The first byte.
        offset: u16,
        /// How many.
        len: u16,
    },
    /// A grant of another domain to the owner of this entry (a transitive grant).
    Transitive {
        /// The domain that the grant is for.
        domain: DomId,
        /// Its grant.
        reference: GrantRef,
    },
}

/// A grant entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The domain that may use the grant.
    pub to: DomId,
    /// Whether it may be written.
    pub writable: bool,
    /// The granted pages or bytes.
    pub what: GrantKind,
}

/// Why the use of a grant was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is no such domain.
    NoDomain,
    /// The domain has been destroyed, and exists only because pages of it are still mapped.
    Dying,
    /// The reference is beyond the end of the grant table.
    BeyondTable,
    /// Nothing was ever granted under that reference.
    NeverGranted,
    /// The grant has been revoked.
    Revoked,
    /// The page is granted to another domain.
    NotToUs,
    /// The page is granted for reading only, and the use would write it.
    ReadOnly,
    /// The domain has no such page.
    NoPage,
    /// The entry changed in every attempt to mark it as used.
    Unstable,
    /// The grant is a part of a page or transitive, but only whole pages of the domain itself can
    /// be mapped or passed on.
    NotWhole,
    /// Some of the bytes are outside of the granted range.
    Beyond,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoDomain => "there is no such domain",
            Reason::Dying => "the domain is dying",
            Reason::BeyondTable => "no such reference",
            Reason::NeverGranted => "nothing was granted",
            Reason::Revoked => "it was revoked",
            Reason::NotToUs => "it is granted to another domain",
            Reason::ReadOnly => "it is granted for reading",
            Reason::NoPage => "no such page",
            Reason::Unstable => "the entry changes all the time",
            Reason::NotWhole => "not a whole page of that domain",
            Reason::Beyond => "beyond what is granted",
        })
    }
}

impl Entry {
    /// The two halves of an entry, as version 2 has them; version 1 has the lower half of each,
    /// side by side.
    pub fn encode(self) -> [u64; 2] {
        let read_only = if self.writable { 0 } else { flag::READ_ONLY };
        let (flags, more, last) = match self.what {
            GrantKind::Page(page) => (flag::PERMIT, 0, page.into()),
            GrantKind::SubPage { page, offset, len } => (
                flag::PERMIT | flag::SUB_PAGE,
                u64::from(offset) | u64::from(len) << 16,
                page.into(),
            ),
            GrantKind::Transitive { domain, reference } => {
                (flag::TRANSITIVE, domain.0.into(), reference.0.into())
            }
        };
        [u64::from(flags | read_only) | u64::from(self.to.0) << 16 | more << 32, last]
    }

    /// An entry of version 1.
    ///
    /// # Errors
    /// When it grants nothing.
    pub fn decode_v1(word: u64) -> Result<Entry, Reason> {
        let (flags, to) = (word as u16, DomId((word >> 16) as u16));
        match flags & flag::TYPE {
            flag::PERMIT => {
                let what = GrantKind::Page((word >> 32) as u32);
                Ok(Entry { to, writable: flags & flag::READ_ONLY == 0, what })
            }
            flag::INVALID if word == 0 => Err(Reason::NeverGranted),
            _ => Err(Reason::Revoked),
        }
    }

    /// An entry of version 2.
    ///
    /// # Errors
    /// When it grants nothing.
    pub fn decode_v2([first, last]: [u64; 2]) -> Result<Entry, Reason> {
        let (flags, to) = (first as u16, DomId((first >> 16) as u16));
        let (more, rest) = ((first >> 32) as u16, (first >> 48) as u16);
        let page = || u32::try_from(last).map_err(|_| Reason::NoPage);
        let what = match flags & flag::TYPE {
            flag::PERMIT if flags & flag::SUB_PAGE != 0 => {
                if usize::from(more) + usize::from(rest) > PAGE {
                    return Err(Reason::NoPage);
                }
                GrantKind::SubPage { page: page()?, offset: more, len: rest }
            }
            flag::PERMIT => GrantKind::Page(page()?),
            flag::TRANSITIVE => {
                GrantKind::Transitive { domain: DomId(more), reference: GrantRef(last as u32) }
            }
            _ if [first, last] == [0, 0] => return Err(Reason::NeverGranted),
            _ => return Err(Reason::Revoked),
        };
        Ok(Entry { to, writable: flags & flag::READ_ONLY == 0, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_in_the_header_file() {
        let to = DomId(0x1234);
        let page = Entry { to, writable: false, what: GrantKind::Page(0x89) };
        // struct grant_entry_v1: flags, domid, frame.
        let [first, last] = page.encode();
        assert_eq!((first | last << 32).to_le_bytes(), [5, 0, 0x34, 0x12, 0x89, 0, 0, 0]);
        assert_eq!(Entry::decode_v1(first | last << 32), Ok(page));
        // union grant_entry_v2, sub_page: hdr, page_off, length, frame.
        let part = Entry {
            to,
            writable: true,
            what: GrantKind::SubPage { page: 7, offset: 0x0102, len: 0x0304 },
        };
        assert_eq!(part.encode()[0].to_le_bytes(), [1, 1, 0x34, 0x12, 2, 1, 4, 3]);
        // transitive: hdr, trans_domid, pad, gref.
        let through = GrantKind::Transitive { domain: DomId(9), reference: GrantRef(77) };
        let through = Entry { to, writable: true, what: through };
        assert_eq!(
            through.encode().map(u64::to_le_bytes),
            [[3, 0, 0x34, 0x12, 9, 0, 0, 0], [77, 0, 0, 0, 0, 0, 0, 0]]
        );
        for entry in [page, part, through] {
            assert_eq!(Entry::decode_v2(entry.encode()), Ok(entry));
        }
        assert_eq!(Entry::decode_v1(0), Err(Reason::NeverGranted));
        assert_eq!(Entry::decode_v2([0x1234_0000, 7]), Err(Reason::Revoked));
        let beyond = Entry {
            to,
            writable: true,
            what: GrantKind::SubPage { page: 7, offset: 4000, len: 97 },
        };
        assert_eq!(Entry::decode_v2(beyond.encode()), Err(Reason::NoPage));
    }

    #[test]
    fn nothing_overlaps() {
        let layout = Layout { pages: 3 };
        let page = |addr: u64| addr / PAGE as u64;
        assert_eq!(page(layout.channel(0, 0)), 3);
        assert_eq!(page(layout.channel(CHANNELS - 1, 1) + 3), 3);
        for version in [Version::V1, Version::V2] {
            let last = GrantRef(FRAMES * version.per_frame() - 1);
            assert_eq!(page(layout.entry(version, GrantRef(0))), 4);
            assert_eq!(page(layout.entry(version, last) + 7), 3 + u64::from(FRAMES));
        }
        assert_eq!(page(layout.status(GrantRef(0))), 4 + u64::from(FRAMES));
        let last = layout.status(GrantRef(FRAMES * Version::V2.per_frame() - 1));
        assert_eq!(page(last) + 1, page(layout.call(0)));
        assert_eq!(page(layout.call(CALLERS - 1)) + 1, layout.total() as u64);
    }
}
