//! The backends that serve the vifs of a Xen host's guests: the daemon, or the kernel's xen-netback
//! with a Linux bridge.

use super::{Dom0, Service};
use crate::guest::{GuestError, Shell};
use crate::program::Program;
use crate::xen::dom0::TIMEOUT;

/// The backend that serves vifs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Netback {
    /// The daemon in dom0.
    Ringmain,
    /// The kernel's own.
    Kernel,
}

impl Netback {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Netback::Ringmain => "Ringmain",
            Netback::Kernel => "xen-netback",
        }
    }

    /// The vif in a guest's configuration.
    pub fn vif(self) -> &'static str {
        match self {
            Netback::Ringmain => "script=vif-ringmain",
            Netback::Kernel => "script=vif-bridge,bridge=bridge0",
        }
    }

    /// Makes it serve vifs with up to `queues` queues, as long as the value lives. `config` is what
    /// the daemon's configuration begins with.
    ///
    /// # Errors
    /// When the daemon, or the kernel's module, does not start.
    pub fn set_up(
        self,
        dom0: &Dom0,
        program: &Program,
        queues: u16,
        config: &str,
    ) -> Result<Option<Service>, GuestError> {
        match self {
            Netback::Ringmain => {
                let binary = program.find().map_err(|source| GuestError::Channel {
                    what: "cannot find ringmain",
                    source,
                })?;
                dom0.install(&binary)?;
                let port =
                    format!("[[port]]\nname = \"vifs\"\nkind = \"xen\"\nqueues = {queues}\n");
                dom0.serve(&format!("{config}{port}")).map(Some)
            }
            Netback::Kernel => {
                let bridge = "ip link add bridge0 type bridge && ip link set bridge0 up";
                dom0.must(
                    &format!("modprobe xen-netback max_queues={queues} && {bridge}"),
                    TIMEOUT,
                )?;
                Ok(None)
            }
        }
    }
    /// Undoes what [`set_up`](Self::set_up) did, so that the other backend can serve vifs. The
    /// daemon, if this was one, and all vifs must be gone.
    ///
    /// # Errors
    /// When the kernel's module cannot be removed.
    pub fn tear_down(self, dom0: &Dom0) -> Result<(), GuestError> {
        match self {
            Netback::Ringmain => Ok(()),
            Netback::Kernel => {
                dom0.must("rmmod xen_netback && ip link del bridge0", TIMEOUT).map(drop)
            }
        }
    }
}
