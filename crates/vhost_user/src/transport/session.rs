//! The state of one connection: requests in, replies and calls of the device out.
//!
//! A session has no socket and no thread: their owner reads a message and calls
//! [`Session::answer`].
//!
//! The session depends as little as possible on the order of messages. Stock front-ends enable
//! vrings before they have negotiated features, repeat `SET_FEATURES` for every queue pair while
//! others already run, and describe vrings in different orders. So a vring starts when everything
//! that it depends on is known, and only changes under a running vring are refused.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use network::control_budget::{MESSAGE, QUEUE, REGION};
use ring::{MapError, Memory, MemoryAccount, Recovery, WriteLog};
use runtime::ThreadUsage;

use super::backend_channel::BackendChannel;
use super::device::{Declined, Device};
use super::error::SessionError;
use super::feature::{self, Features, protocol};
use super::inflight::InflightRecords;
use super::memory_table::MemoryTable;
use super::message::{BadMessage, ConfigRange, Header, Inflight, LogArea, Region, Reply, Request};
use super::vrings::Vrings;

mod restore;

pub use super::memory_table::MAX_REGIONS;

/// The outcome of a message.
#[derive(Debug, Default)]
pub struct Answer {
    /// Bytes to send back.
    pub reply: Option<Vec<u8>>,
    /// A descriptor to send beside them.
    pub file: Option<OwnedFd>,
    /// Why the request was not met.
    pub error: Option<SessionError>,
    /// The connection cannot go on.
    pub closes: bool,
    /// Cost of the request to the workers.
    pub cost: Duration,
}

/// One front-end's connection.
pub struct Session<D: Device> {
    vrings: Vrings<D>,
    protocol: u64,
    table: MemoryTable,
    /// The account that the front-end's memory is charged to.
    account: Arc<MemoryAccount>,
    /// A descriptor that belongs to the reply at hand.
    reply_file: Option<OwnedFd>,
    /// Regions, logs and in-flight records that the request at hand has mapped.
    mapped: u32,
    /// The socket on which the front-end reads requests of this side.
    backend_channel: Option<BackendChannel>,
}

impl<D: Device> Session<D> {
    /// A session without any message yet. Pages of the front-end's memory that this process
    /// allocates are charged to `account`.
    pub fn new(device: D, account: Arc<MemoryAccount>) -> Self {
        Session {
            vrings: Vrings::new(device),
            protocol: 0,
            table: MemoryTable::default(),
            account,
            reply_file: None,
            mapped: 0,
            backend_channel: None,
        }
    }

    /// The virtio features in use.
    pub fn features(&self) -> Features {
        self.vrings.features()
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.vrings.device
    }

    /// Numbers of the vrings that are started and enabled.
    pub fn active_vrings(&self) -> Vec<usize> {
        self.vrings.active()
    }

    /// Numbers of the vrings that may have been started in the wrong place.
    pub fn unclear_vrings(&self) -> Vec<usize> {
        self.vrings.unclear()
    }

    /// Vrings that were started, since the last call, at another position than the front-end's, or
    /// perhaps should have been.
    pub fn take_recovered(&mut self) -> Vec<(usize, Recovery)> {
        self.vrings.take_recovered()
    }

    /// Whether each vring runs.
    #[cfg(test)]
    pub(crate) fn running(&self) -> Vec<bool> {
        self.vrings.running()
    }

    /// Number of memory regions.
    #[cfg(test)]
    pub(crate) fn region_count(&self) -> usize {
        self.table.len()
    }

    /// Serves a request. Returns the reply. All of `fds` are used or closed.
    pub fn answer(&mut self, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> Answer {
        let before = ThreadUsage::now();
        let result = Request::parse(header, payload, fds.len())
            .map_err(SessionError::from)
            .and_then(|request| {
                tracing::trace!(?request, "received");
                self.handle(request, fds, header.name())
            });
        // To start a ring, this thread reads all of it, and all of its record.
        let settled = self.account.settle_own((ThreadUsage::now() - before).faults);
        let result = result.and_then(|reply| settled.map(|()| reply).map_err(SessionError::from));
        let queues = self.vrings.commit();
        let cost = MESSAGE + cost(queues) + REGION * std::mem::take(&mut self.mapped);
        let acknowledges = header.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let acknowledge = |status| acknowledges.then(|| Reply::Number(status).encode(header.code));
        match result {
            Ok(Some(reply)) => {
                let (reply, file) = (Some(reply.encode(header.code)), self.reply_file.take());
                Answer { reply, file, cost, ..Answer::default() }
            }
            Ok(None) => Answer { reply: acknowledge(0), cost, ..Answer::default() },
            Err(error) => {
                let closes = !(acknowledges && error.is_declinable());
                Answer { reply: acknowledge(1), error: Some(error), closes, file: None, cost }
            }
        }
    }

    /// Stops all vrings. `signal_errors`: the front-end is told through the vrings' error
    /// descriptors. Returns what it cost the workers.
    pub fn close(&mut self, signal_errors: bool) -> Duration {
        self.vrings.stop_all();
        let queues = self.vrings.commit();
        if signal_errors {
            self.vrings.signal_errors();
        }
        MESSAGE + cost(queues)
    }

    fn handle(
        &mut self,
        request: Request,
        mut fds: Vec<OwnedFd>,
        name: &'static str,
    ) -> Result<Option<Reply>, SessionError> {
        let number = |value| Ok(Some(Reply::Number(value)));
        let vrings = &mut self.vrings;
        match request {
            Request::GetFeatures => return number(self.offered()),
            Request::GetProtocolFeatures => return number(self.offered_protocol()),
            Request::GetQueueNum => return number(vrings.device.queue_num().into()),
            Request::GetMaxMemSlots => return number(MAX_REGIONS as u64),
            Request::GetConfig(range) => return self.read_config(range, name).map(Some),
            Request::SetConfig(range, bytes) => self.write_config(range, &bytes, name)?,
            Request::SetBackendReqFd => self.set_backend_channel(fds.pop(), name)?,
            Request::GetVringBase(ring) => {
                let base = vrings.get_base(ring, name)?;
                return Ok(Some(Reply::State(ring, base)));
            }
            Request::GetInflightFd(wanted, size) => {
                let made = self.make_records(&wanted)?;
                return Ok(Some(Reply::Inflight(made, size)));
            }
            Request::SetInflightFd(described) => self.use_records(&described, fds.pop())?,
            Request::SetLogBase(area) => {
                self.set_log(&area, fds.pop(), name)?;
                return Ok(Some(Reply::Empty));
            }
            // Front-ends read the log without being told.
            Request::SetOwner | Request::SetLogFd => {}
            Request::SetFeatures(bits) => self.set_features(bits)?,
            Request::SetProtocolFeatures(bits) => self.set_protocol(bits)?,
            Request::ResetOwner | Request::ResetDevice => vrings.reset(),
            Request::SetMemTable(regions) => self.set_table(regions, fds)?,
            Request::AddMemReg(region) => self.add_region(region, fds.pop())?,
            Request::RemMemReg(region) => self.remove_region(&region)?,
            Request::SetVringNum(ring, size) => vrings.set_size(ring, size, name)?,
            Request::SetVringBase(ring, base) => vrings.set_base(ring, base, name)?,
            Request::SetVringAddr(ring, address) => vrings.set_address(ring, address, name)?,
            Request::SetVringKick(ring, has) => vrings.set_kick(ring, has, fds.pop(), name)?,
            Request::SetVringCall(ring, has) => vrings.set_call(ring, has, fds.pop(), name)?,
            Request::SetVringErr(ring, has) => vrings.set_err(ring, has, fds.pop(), name)?,
            Request::SetVringEnable(ring, enable) => vrings.set_enable(ring, enable, name)?,
            Request::NetSetMtu(mtu) => {
                vrings.device.set_mtu(mtu).map_err(|declined| refusal(declined, name))?;
            }
            Request::SendRarp(mac) => {
                vrings.device.announce(mac).map_err(|declined| refusal(declined, name))?;
            }
        }
        Ok(None)
    }

    /// The virtio features that are offered.
    fn offered(&self) -> u64 {
        feature::OFFERED | self.vrings.device.features()
    }

    /// The protocol features that are offered.
    fn offered_protocol(&self) -> u64 {
        protocol::OFFERED | self.vrings.device.protocol_features()
    }

    fn set_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let surplus = bits & !self.offered();
        if surplus != 0 {
            return Err(SessionError::Features(surplus));
        }
        self.vrings.set_features(Features(bits))
    }

    fn set_protocol(&mut self, bits: u64) -> Result<(), SessionError> {
        match bits & !self.offered_protocol() {
            0 => {
                self.protocol = bits;
                Ok(())
            }
            surplus => Err(SessionError::ProtocolFeatures(surplus)),
        }
    }

    /// Reads any range of the configuration space, if the device has offered to serve that.
    fn read_config(&self, range: ConfigRange, name: &'static str) -> Result<Reply, SessionError> {
        if self.offered_protocol() & protocol::CONFIG == 0 {
            return Err(BadMessage::NotOffered(name).into());
        }
        let mut bytes = vec![0; range.size as usize];
        let is_inside = self.vrings.device.read_config(range.offset, &mut bytes);
        Ok(Reply::Config(range, is_inside.then_some(bytes)))
    }

    fn write_config(
        &mut self,
        range: ConfigRange,
        bytes: &[u8],
        name: &'static str,
    ) -> Result<(), SessionError> {
        let device = &mut self.vrings.device;
        device.write_config(range.offset, bytes).map_err(|declined| refusal(declined, name))
    }

    fn set_backend_channel(
        &mut self,
        socket: Option<OwnedFd>,
        name: &'static str,
    ) -> Result<(), SessionError> {
        if self.offered_protocol() & protocol::BACKEND_REQ == 0 {
            return Err(BadMessage::NotOffered(name).into());
        }
        self.backend_channel = socket.map(BackendChannel::new);
        Ok(())
    }

    /// Tells the front-end that the configuration space has changed, if it has asked for that.
    pub fn announce_config_change(&self) {
        if let Some(channel) = &self.backend_channel {
            channel.announce_config_change();
        }
    }

    /// Makes in-flight records, and keeps them for the rings that are started from now on.
    fn make_records(&mut self, wanted: &Inflight) -> Result<Inflight, SessionError> {
        let (most, packed) = (self.vrings.device.vring_count(), self.vrings.is_packed());
        let (records, made, file) = InflightRecords::create(wanted, most, packed)?;
        self.account.charge(&file, made.len).map_err(SessionError::Records)?;
        self.mapped += 1;
        self.vrings.records = Some(records);
        self.reply_file = Some(file);
        Ok(made)
    }

    /// Keeps records of a back-end before this one for the rings that are started from now on.
    fn use_records(
        &mut self,
        described: &Inflight,
        file: Option<OwnedFd>,
    ) -> Result<(), SessionError> {
        let Some(file) = file else { return Ok(()) };
        let packed = self.vrings.is_packed();
        let records = InflightRecords::adopt(described, file, packed, &self.account)?;
        self.mapped += 1;
        self.vrings.records = Some(records);
        Ok(())
    }

    /// Marks written pages in `area` of `file` from now on. Front-ends send the same log once for
    /// each queue pair.
    fn set_log(
        &mut self,
        area: &LogArea,
        file: Option<OwnedFd>,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let LogArea { len, offset } = *area;
        if self.protocol & protocol::LOG_SHMFD == 0 {
            return Err(BadMessage::NotOffered(name).into());
        }
        let Some(file) = file else { return Ok(()) };
        if self.vrings.log().is_some_and(|log| log.is_at(file.as_fd(), offset, len)) {
            self.vrings.expect_log();
            return Ok(());
        }
        let map = || {
            let copy = file.try_clone().map_err(MapError::Os)?;
            let log = WriteLog::map(copy, offset, len)?;
            self.account.charge(&file, len)?;
            Ok(log)
        };
        let log = map().map_err(SessionError::Log)?;
        self.mapped += 1;
        self.vrings.set_log(log)
    }

    fn set_table(&mut self, regions: Vec<Region>, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        self.table.replace(regions, fds);
        let memory = self.map()?;
        let moved = self.vrings.set_memory(memory);
        moved.and(self.vrings.start_all())
    }

    /// Maps all regions of the table.
    fn map(&mut self) -> Result<Arc<Memory>, SessionError> {
        self.mapped += self.table.len() as u32;
        let memory = self.table.map(&self.account)?;
        self.vrings.check_log(&memory)?;
        Ok(memory)
    }

    /// Adds a region. Adding the same region again changes nothing: QEMU up to version 8 reports
    /// every change of its memory once for each queue pair.
    fn add_region(&mut self, region: Region, fd: Option<OwnedFd>) -> Result<(), SessionError> {
        let Some(fd) = fd else { return Ok(()) };
        if self.table.has(&region, &fd) {
            return Ok(());
        }
        if !self.table.add(region, fd) {
            return Err(SessionError::TooManyRegions);
        }
        self.remap_partly()
    }

    /// Removes a region. Removing it again changes nothing, since QEMU up to version 8 reports
    /// every change once for each queue pair. A front-end that splits or moves a region removes it
    /// before it adds the replacement; vrings that lie in it are stopped meanwhile.
    fn remove_region(&mut self, region: &Region) -> Result<(), SessionError> {
        match self.table.remove(region) {
            true => self.remap_partly(),
            false => Ok(()),
        }
    }

    /// Maps the table after a change of one region. A vring that is not in memory now is not an
    /// error: more regions may come.
    fn remap_partly(&mut self) -> Result<(), SessionError> {
        let memory = self.map()?;
        let _ = self.vrings.set_memory(memory);
        let _ = self.vrings.start_all();
        Ok(())
    }
}

/// Cost of changing so many queues, together with the topology.
fn cost(queues: u32) -> Duration {
    if queues == 0 { Duration::ZERO } else { QUEUE * (queues + 1) }
}

/// Why a request is declined.
fn refusal(declined: Declined, name: &'static str) -> SessionError {
    match declined {
        Declined::NotOffered => BadMessage::NotOffered(name).into(),
        Declined::Value(reason) => SessionError::Declined(reason),
    }
}

#[cfg(test)]
mod tests;
