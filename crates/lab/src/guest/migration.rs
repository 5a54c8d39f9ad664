//! Migration of a guest from one QEMU to another on this machine.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Deadline, Guest, GuestError, Shell};

/// How often a wait looks.
const STEP: Duration = Duration::from_millis(20);

/// How fast QEMU copies a guest's memory, and when it stops the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Bytes a second, at most, while the guest runs.
    bandwidth: u64,
    /// QEMU stops the guest once it can copy the rest in this time, in milliseconds.
    downtime: u64,
}

impl Pace {
    /// QEMU copies all memory while the guest runs, and then, several times, what was written
    /// meanwhile. What arrives depends on the logs of written pages.
    pub(super) const GRADUAL: Pace = Pace { bandwidth: 128 << 20, downtime: 50 };
    /// QEMU stops the guest soon after the start, and copies most of the memory afterwards.
    pub(super) const STOPPED: Pace = Pace { bandwidth: 1 << 33, downtime: 5000 };
}

/// What QEMU says of a migration that is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// How long the guest was stopped.
    pub downtime: Duration,
    /// How long the migration took.
    pub total: Duration,
    /// Bytes of memory that were sent.
    pub bytes: u64,
}

impl Guest {
    /// Migrates the guest to the QEMU of `target`, which was started to listen at `incoming`, and
    /// waits until that has all of it. The guest is stopped here then, and runs on there unless
    /// its QEMU was started to wait.
    ///
    /// # Errors
    /// When a monitor refuses, or the migration fails or takes longer than `limit`.
    pub fn migrate(
        &self,
        target: &Guest,
        incoming: &Path,
        limit: Duration,
    ) -> Result<Migrated, GuestError> {
        // A QEMU answers once it listens.
        target.monitor("query-status", json!({}))?;
        let Pace { bandwidth, downtime } = self.pace;
        let pace = json!({ "max-bandwidth": bandwidth, "downtime-limit": downtime });
        self.monitor("migrate-set-parameters", pace)?;
        let uri = json!({ "uri": format!("unix:{}", incoming.display()) });
        self.monitor("migrate", uri)?;
        let mut deadline = Deadline::new(limit);
        loop {
            let state = self.monitor("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => return Ok(Migrated::of(&state)),
                Some("failed" | "cancelled") => {
                    return Err(GuestError::Refused {
                        name: self.name().into(),
                        command: "migrate".into(),
                        answer: format!("{state}; the target's console: {}", target.console()),
                    });
                }
                _ if deadline.is_over() => return Err(self.late("its migration", limit)),
                _ => std::thread::sleep(STEP),
            }
        }
    }

    /// Waits until all of a guest that migrates is here.
    ///
    /// # Errors
    /// When the monitor is gone, or after `limit`.
    pub fn arrived(&self, limit: Duration) -> Result<(), GuestError> {
        let mut deadline = Deadline::new(limit);
        while self.monitor("query-status", json!({}))?["status"] == "inmigrate" {
            if deadline.is_over() {
                return Err(self.late("its arrival", limit));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    fn late(&self, what: &str, limit: Duration) -> GuestError {
        GuestError::Late {
            name: self.name().into(),
            what: what.into(),
            limit,
            console: self.console(),
        }
    }
}

impl Migrated {
    fn of(state: &Value) -> Migrated {
        let milliseconds = |key: &str| Duration::from_millis(state[key].as_u64().unwrap_or(0));
        Migrated {
            downtime: milliseconds("downtime"),
            total: milliseconds("total-time"),
            bytes: state["ram"]["transferred"].as_u64().unwrap_or(0),
        }
    }
}
