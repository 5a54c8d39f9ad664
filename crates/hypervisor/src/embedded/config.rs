//! Which generation of its inner design a host uses.
//!
//! Each choice is one that Xen has made at some time, oldest first; the newest is the default. They
//! differ in nothing but speed, so the same tests are run on all of them.

/// How a grant table is kept consistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Locking {
    /// One lock for each table, held for each operation (Xen 4.5 and before).
    Table,
    /// A read-write lock for each table, held for reading, and a lock for each entry (Xen 4.6).
    Entries,
    /// As before, but readers note what they read in a place that belongs to their CPU, so that
    /// they share no cache line with each other (Xen 4.7).
    #[default]
    PerCpu,
}

/// Where the handles of mappings come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Maptrack {
    /// One list of free handles for each domain (Xen 4.5 and before).
    Single,
    /// A list for each virtual CPU, which pops from its own without a lock. When that is used up
    /// and the table can't grow, there is no handle, even if other lists have some (Xen 4.6,
    /// but for its way of stealing, which was a race).
    PerVcpu,
    /// A list for each virtual CPU with a lock that is rarely contended, so that others can steal
    /// from it (since XSA-228).
    #[default]
    Stealing,
}

/// When TLBs are flushed after unmapping.
///
/// Here as there it is the processor's TLB: pages are unmapped from this process, and the kernel
/// interrupts all CPUs that run threads of it, once for each call that takes present pages away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flush {
    /// For every page that is unmapped.
    Always,
    /// Once for up to 32 pages that are unmapped together (`GNTTAB_UNMAP_BATCH_SIZE`).
    Batch,
    /// As before, and not at all if none of the pages was touched while it was mapped. Pages are
    /// then mapped without being made present, and the kernel, which finds none present, has
    /// nothing to flush (XenServer's patch reads the accessed bit instead).
    #[default]
    Touched,
}

/// How long a batch of copies holds on to a granted page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Copying {
    /// For one copy (Xen 4.5 and before).
    Release,
    /// As long as the next copy of the batch uses the same page in the same way.
    #[default]
    Keep,
}

/// A host's choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Design {
    /// How grant tables are locked.
    pub locking: Locking,
    /// Where handles come from.
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

/// What has a name in configurations.
pub trait Named: Sized + Copy + PartialEq + 'static {
    /// All there are, with their names.
    const ALL: &'static [(&'static str, Self)];

    /// Its name.
    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }

    /// The one of that name.
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
