//! The accelerators on which QEMU runs guests.

use super::tsc;

/// The accelerator on which QEMU runs guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The processor's own virtualisation.
    Kvm,
    /// QEMU's translator: slower by an order of magnitude, but it works everywhere.
    Tcg,
}

impl Accel {
    /// QEMU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        }
    }

    pub(super) fn args(self) -> [&'static str; 4] {
        match self {
            Accel::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // Without the promise that `rep movsb` is fast, which Linux then copies with: in the
            // translator it goes byte by byte, and TCP between guests at a third of the
            // speed.
            Accel::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max,erms=off,fsrm=off"],
        }
    }

    /// The command line of a guest's kernel.
    pub(super) fn kernel_arguments(self) -> String {
        // The translator's time stamp counter is steady, but Linux would not trust it, and would
        // read a slow timer instead.
        let mut text =
            String::from("console=ttyS0 loglevel=4 panic=-1 mitigations=off tsc=reliable");
        // A guest with little CPU time misses timer interrupts while its kernel boots. The kernel
        // then takes the timer for broken, and panics. Or it measures the counter as several times
        // too slow, and its clock is fast.
        text.push_str(" no_timer_check");
        if let Some(rate) = tsc::kilohertz().filter(|_| self == Accel::Tcg) {
            text.push_str(&format!(" tsc_early_khz={rate}"));
        }
        text
    }
}
