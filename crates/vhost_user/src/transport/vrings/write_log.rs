//! The log of written pages of vrings, for a front-end that migrates its guest.

use std::sync::Arc;

use ring::{Memory, WriteLog};

use super::{Device, Vrings};
use crate::transport::error::SessionError;
use crate::transport::feature::bit;

impl<D: Device> Vrings<D> {
    /// The log of written pages that the front-end has shared.
    pub(in crate::transport) fn log(&self) -> Option<&WriteLog> {
        self.log.as_deref()
    }

    /// Marks written pages in `log` from now on, while that feature is negotiated.
    pub(in crate::transport) fn set_log(&mut self, log: WriteLog) -> Result<(), SessionError> {
        self.log = Some(Arc::new(log));
        self.expect_log();
        self.change_log()
    }

    /// Notes that the front-end has named the log, because a migration begins or continues.
    pub(in crate::transport) fn expect_log(&mut self) {
        self.log_is_new = !self.features.has(bit::LOG_ALL);
    }

    /// The log that is in use.
    pub(super) fn used_log(&self) -> Option<&Arc<WriteLog>> {
        self.log.as_ref().filter(|_| self.features.has(bit::LOG_ALL))
    }

    /// Whether the log that is in use, if any, has a bit for each page of `memory`.
    pub(in crate::transport) fn check_log(&self, memory: &Memory) -> Result<(), SessionError> {
        let memory = memory.end();
        match self.used_log().map(|log| log.end()) {
            Some(log) if log < memory => Err(SessionError::ShortLog { log, memory }),
            _ => Ok(()),
        }
    }

    /// Moves the vrings that run to the same memory under another log. The device takes all queues
    /// back for that, so no write is logged in the former log any more.
    pub(super) fn change_log(&mut self) -> Result<(), SessionError> {
        let Some(memory) = self.memory.clone() else { return Ok(()) };
        self.check_log(&memory)?;
        self.set_memory(memory)
    }
}
