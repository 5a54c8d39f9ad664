//! The layouts of slots. A layout depends on how the frontend's compiler aligns numbers of 64 bits:
//! to eight bytes, or, as on i386, to four.

/// Bytes of a request in the layout of a 64-bit frontend.
pub const LEN_64: usize = 112;
/// Bytes of a request in the layout of a 32-bit x86 frontend.
pub const LEN_32: usize = 108;

/// The layout of the slots of a ring (`protocol` in the store).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `x86_64-abi`, which is this side's native one.
    Bits64,
    /// `x86_32-abi`.
    Bits32,
}

impl Layout {
    /// The layout of this side.
    pub const NATIVE: Layout = Layout::Bits64;

    /// The layout that goes by this name in the store. A frontend that gives none is assumed to be
    /// a 32-bit one, as by Linux' backend (blkif.h assumes the backend's own layout). `None`: there
    /// is no such layout.
    pub fn named(protocol: Option<&str>) -> Option<Layout> {
        match protocol {
            Some("x86_64-abi") => Some(Layout::Bits64),
            None | Some("x86_32-abi") => Some(Layout::Bits32),
            Some(_) => None,
        }
    }

    /// Its name in the store.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Bits64 => "x86_64-abi",
            Layout::Bits32 => "x86_32-abi",
        }
    }

    /// Where a request's number is, in bytes from the start of the slot.
    pub fn id(self) -> usize {
        match self {
            Layout::Bits64 => 8,
            Layout::Bits32 => 4,
        }
    }

    /// Where a request's first sector is.
    pub fn sector(self) -> usize {
        self.id() + 8
    }

    /// Where the segments of a request begin, or the number of sectors to discard is.
    pub fn body(self) -> usize {
        self.id() + 16
    }

    /// Where the references of an indirect request begin, behind its handle.
    pub fn lists(self) -> usize {
        self.body() + 4
    }
}
