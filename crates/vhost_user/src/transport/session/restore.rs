//! The hand-over of a session to another process.

use std::sync::Arc;
use std::time::Duration;

use network::control_budget::MESSAGE;
use ring::MemoryAccount;
use runtime::ThreadUsage;

use super::{Session, cost};
use crate::transport::backend_channel::BackendChannel;
use crate::transport::device::Device;
use crate::transport::error::SessionError;
use crate::transport::inflight::InflightRecords;
use crate::transport::memory_table::MemoryTable;
use crate::transport::saved::{Files, HandOverError, Positions, SavedSession};

impl<D: Device> Session<D> {
    /// The state that the front-end has set, for another process. Vrings continue meanwhile.
    ///
    /// # Errors
    /// When the guest migrates, or no descriptors are left.
    pub fn save(&self, files: &mut Files) -> Result<SavedSession, HandOverError> {
        let inflight = self.vrings.records.as_ref().map(|records| records.save(files));
        let channel = self.backend_channel.as_ref().map(|channel| files.add(channel.socket()));
        Ok(SavedSession {
            features: self.vrings.features().0,
            protocol: self.protocol,
            regions: self.table.save(files)?,
            inflight: inflight.transpose()?,
            backend_channel: channel.transpose()?,
            vrings: self.vrings.save(files)?,
        })
    }

    /// The session of another process, in which no vring runs yet.
    ///
    /// # Errors
    /// When a front-end could not have set this state here.
    pub fn restore(
        device: D,
        account: Arc<MemoryAccount>,
        saved: &SavedSession,
        files: &mut Files,
    ) -> Result<Self, HandOverError> {
        let unusable = |what: &dyn std::fmt::Display| HandOverError::Unusable(what.to_string());
        let mut session = Session::new(device, account);
        let surplus = saved.features & !session.offered();
        if surplus != 0 {
            return Err(unusable(&SessionError::Features(surplus)));
        }
        let surplus = saved.protocol & !session.offered_protocol();
        if surplus != 0 {
            return Err(unusable(&SessionError::ProtocolFeatures(surplus)));
        }
        session.protocol = saved.protocol;
        session.table = MemoryTable::restore(&saved.regions, files)?;
        let memory = match session.table.len() {
            0 => None,
            _ => Some(session.table.map(&session.account).map_err(|error| unusable(&error))?),
        };
        session.vrings.restore(saved.features, &saved.vrings, memory, files)?;
        let account = &session.account;
        let records = saved.inflight.as_ref();
        session.vrings.records =
            records.map(|records| InflightRecords::restore(records, files, account)).transpose()?;
        let channel = saved.backend_channel.map(|number| files.take(number)).transpose()?;
        session.backend_channel = channel.map(BackendChannel::new);
        Ok(session)
    }

    /// Stops the vrings. Returns their positions. The front-end is not notified.
    pub fn pause(&mut self) -> Positions {
        self.vrings.pause()
    }

    /// Starts the vrings at these positions. Returns what it cost the workers.
    ///
    /// # Errors
    /// When a vring is not usable.
    pub fn start_saved(&mut self, positions: &[Option<u32>]) -> Result<Duration, SessionError> {
        let before = ThreadUsage::now();
        let started = self.vrings.start_saved(positions);
        let settled = self.account.settle_own((ThreadUsage::now() - before).faults);
        let queues = self.vrings.commit();
        started?;
        settled?;
        Ok(MESSAGE + cost(queues))
    }
}
