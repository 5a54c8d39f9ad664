//! Migration of a guest from one QEMU to another on this machine.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::pace::Pace;
use super::{Deadline, Guest, GuestError, Shell};

/// How often a wait looks.
const STEP: Duration = Duration::from_millis(20);
/// How long a migration may take before QEMU is allowed twice the downtime. A guest that writes to
/// more memory than a busy machine copies in that time would never be stopped.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest downtime that QEMU takes, in milliseconds.
const MOST_DOWNTIME: u64 = 2_000_000;

/// QEMU's figures of a completed migration.
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
    /// its QEMU was started to wait. While it takes long, the downtime of its [`Pace`] is doubled.
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
        let Pace { bandwidth, mut downtime } = self.pace;
        let pace = json!({ "max-bandwidth": bandwidth, "downtime-limit": downtime });
        self.monitor("migrate-set-parameters", pace)?;
        let uri = json!({ "uri": format!("unix:{}", incoming.display()) });
        self.monitor("migrate", uri)?;
        let mut deadline = Deadline::new(limit);
        let mut patience = Deadline::new(PATIENCE);
        loop {
            let state = self.monitor("query-migrate", json!({}))?;
            match state["status"].as_str() {
                // QEMU is done some moments before it has the times.
                Some("completed") if state["total-time"].as_u64().is_some_and(|time| time > 0) => {
                    return Ok(Migrated::of(&state));
                }
                Some("failed" | "cancelled") => {
                    return Err(GuestError::Refused {
                        name: self.name().into(),
                        command: "migrate".into(),
                        answer: format!("{state}; the target's console: {}", target.console()),
                    });
                }
                _ if deadline.is_over() => return Err(self.late("its migration", limit)),
                _ if patience.is_over() => {
                    downtime = MOST_DOWNTIME.min(downtime * 2);
                    let pace = json!({ "downtime-limit": downtime });
                    self.monitor("migrate-set-parameters", pace)?;
                    patience = Deadline::new(PATIENCE);
                }
                _ => std::thread::sleep(STEP),
            }
        }
    }

    /// Waits until an incoming migration is complete.
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
