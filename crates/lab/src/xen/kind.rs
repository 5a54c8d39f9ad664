//! How a domain is virtualised.

use std::fmt;

/// How a domain is virtualised: dom0, or a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Paravirtualised: the kernel calls the hypervisor to change page tables.
    #[default]
    Pv,
    /// Virtualised by the processor, behind nested page tables. Boots more slowly where the
    /// processor is emulated.
    Pvh,
}

impl fmt::Display for Kind {
    /// As `xl.cfg` and Xen's command line name it.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Kind::Pv => "pv",
            Kind::Pvh => "pvh",
        })
    }
}
