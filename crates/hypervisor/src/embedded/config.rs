//! The generation of a host's inner design.
//!
//! Xen has used each of these designs at some time. They are listed oldest first, and the newest is
//! the default. They differ only in speed, so the same tests run on all of them.

/// How a grant table is kept consistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Locking {
    /// One lock for each table, held for each operation (Xen 4.5 and before).
    Table,
    /// A read-write lock for each table, held for reading, and a lock for each entry (Xen 4.6).
    Entries,
    /// As before, but each CPU has its own record of the table that it reads, so readers share no
    /// cache line (Xen 4.7).
    #[default]
    PerCpu,
}

/// How handles of mappings are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Maptrack {
    /// One list of free handles for each domain (Xen 4.5 and before).
    Single,
    /// A list for each virtual CPU, which pops from its own list without a lock. When the list is
    /// empty and the table cannot grow, no handle is available, even if other lists have some
    /// (Xen 4.6, without its racy stealing from other lists).
    PerVcpu,
    /// A list for each virtual CPU with a lock that is rarely contended, so that others can steal
    /// from it (since XSA-228).
    #[default]
    Stealing,
}

/// When TLBs are flushed after unmapping.
///
/// As in Xen, this is the processor's TLB: pages are unmapped from this process, and the kernel
/// interrupts all CPUs that run threads of the process, once for each call that removes present
/// pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flush {
    /// For every page that is unmapped.
    Always,
    /// Once for up to 32 pages that are unmapped together (`GNTTAB_UNMAP_BATCH_SIZE`).
    Batch,
    /// As before, and not at all if none of the pages was accessed while it was mapped. Pages are
    /// mapped without being made present. If none became present, the kernel has nothing to flush
    /// (XenServer's patch reads the accessed bit instead).
    #[default]
    Touched,
}

/// How long a batch of copies keeps a granted page in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Copying {
    /// For one copy (Xen 4.5 and before).
    Release,
    /// For all consecutive copies of the batch that use the same page in the same way.
    #[default]
    Keep,
}

/// A host's choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Design {
    /// How grant tables are locked.
    pub locking: Locking,
    /// How handles are allocated.
    pub maptrack: Maptrack,
    /// When TLBs are flushed.
    pub flush: Flush,
    /// How long copies hold pages.
    pub copying: Copying,
}

impl Design {
    /// Everything as it was in Xen 4.5.
    pub const OLD: Design = Design {
        locking: Locking::Table,
        maptrack: Maptrack::Single,
        flush: Flush::Always,
        copying: Copying::Release,
    };

    /// The newest of everything: the default.
    pub const NEW: Design = Design {
        locking: Locking::PerCpu,
        maptrack: Maptrack::Stealing,
        flush: Flush::Touched,
        copying: Copying::Keep,
    };

    /// All combinations.
    pub fn all() -> impl Iterator<Item = Design> {
        let lockings = [Locking::Table, Locking::Entries, Locking::PerCpu];
        let maptracks = [Maptrack::Single, Maptrack::PerVcpu, Maptrack::Stealing];
        let flushes = [Flush::Always, Flush::Batch, Flush::Touched];
        let copyings = [Copying::Release, Copying::Keep];
        lockings.into_iter().flat_map(move |locking| {
            maptracks.into_iter().flat_map(move |maptrack| {
                flushes.into_iter().flat_map(move |flush| {
                    copyings.into_iter().map(move |copying| Design {
                        locking,
                        maptrack,
                        flush,
                        copying,
                    })
                })
            })
        })
    }
}

/// A value that has a name in configurations.
pub trait Named: Sized + Copy + PartialEq + 'static {
    /// All values, with their names.
    const ALL: &'static [(&'static str, Self)];

    /// Its name.
    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }

    /// The value of that name.
    fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(own, _)| *own == name).map(|(_, one)| *one)
    }
}

impl Named for Locking {
    const ALL: &'static [(&'static str, Self)] =
        &[("table", Locking::Table), ("entries", Locking::Entries), ("per-cpu", Locking::PerCpu)];
}

impl Named for Maptrack {
    const ALL: &'static [(&'static str, Self)] = &[
        ("single", Maptrack::Single),
        ("per-vcpu", Maptrack::PerVcpu),
        ("stealing", Maptrack::Stealing),
    ];
}

impl Named for Flush {
    const ALL: &'static [(&'static str, Self)] =
        &[("always", Flush::Always), ("batch", Flush::Batch), ("touched", Flush::Touched)];
}

impl Named for Copying {
    const ALL: &'static [(&'static str, Self)] =
        &[("release", Copying::Release), ("keep", Copying::Keep)];
}
