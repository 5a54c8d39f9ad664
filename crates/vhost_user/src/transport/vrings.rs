//! The vrings of a session, and the device that runs them.
//!
//! Invariant: a vring is running exactly if the device has started it; the device is called with
//! numbers of existing vrings only.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::{Memory, Recovery, WriteLog};

use super::device::{Device, LostVring, VringStart};
use super::error::SessionError;
use super::feature::{Features, bit};
use super::inflight::InflightRecords;
use super::message::{HasFd, RingAddress};
use super::vring::{OutsideMemory, Vring, event};

mod restore;
mod write_log;

/// All vrings of a session, in the memory that was mapped last.
pub(super) struct Vrings<D: Device> {
    pub(super) device: D,
    /// Records that vrings write their positions to, if the front-end keeps some.
    pub(super) records: Option<InflightRecords>,
    features: Features,
    memory: Option<Arc<Memory>>,
    /// The log of written pages, which is in use while that feature is negotiated.
    log: Option<Arc<WriteLog>>,
    /// The front-end has named the log, and is about to switch it on.
    log_is_new: bool,
    vrings: Vec<Vring>,
    /// Vrings that were started at another position than the front-end's, or perhaps should have
    /// been.
    recovered: Vec<(usize, Recovery)>,
    /// The device has taken the resources that its vrings need.
    acquired: bool,
}

impl<D: Device> Vrings<D> {
    /// Vrings without any settings yet.
    pub(super) fn new(device: D) -> Self {
        let vrings = (0..device.vring_count()).map(|_| Vring::default()).collect();
        Vrings {
            device,
            records: None,
            features: Features::default(),
            memory: None,
            log: None,
            log_is_new: false,
            vrings,
            recovered: Vec::new(),
            acquired: false,
        }
    }

    /// The virtio features in use.
    pub(super) fn features(&self) -> Features {
        self.features
    }

    /// Whether packed virtqueues were negotiated.
    pub(super) fn is_packed(&self) -> bool {
        self.features.has(bit::RING_PACKED)
    }

    /// Numbers of the vrings that are started and enabled.
    pub(super) fn active(&self) -> Vec<usize> {
        let is_active = |ring: &Vring| ring.running && ring.is_enabled(self.features);
        (0..).zip(&self.vrings).filter(|(_, ring)| is_active(ring)).map(|(i, _)| i).collect()
    }

    /// Numbers of the vrings that may have been started in the wrong place.
    pub(super) fn unclear(&self) -> Vec<usize> {
        (0..).zip(&self.vrings).filter(|(_, ring)| ring.unclear).map(|(i, _)| i).collect()
    }

    /// Vrings that were started, since the last call, at another position than the front-end's, or
    /// perhaps should have been.
    pub(super) fn take_recovered(&mut self) -> Vec<(usize, Recovery)> {
        std::mem::take(&mut self.recovered)
    }

    /// Changes the features. While vrings run, only the log can be switched on and off.
    pub(super) fn set_features(&mut self, features: Features) -> Result<(), SessionError> {
        let changed = features.0 ^ self.features.0;
        if changed & !bit::LOG_ALL != 0 {
            if self.vrings.iter().any(|ring| ring.running) {
                return Err(SessionError::FeaturesWhileStarted);
            }
            self.device.set_features(Features(features.0 & !bit::LOG_ALL));
        }
        self.features = features;
        match changed & bit::LOG_ALL {
            0 => Ok(()),
            _ => {
                self.log_is_new = false;
                self.change_log()
            }
        }
    }

    /// Signals the error descriptors of all vrings.
    pub(super) fn signal_errors(&self) {
        for err in self.vrings.iter().filter_map(|ring| ring.err.as_ref()) {
            // The connection ends anyway.
            let _ = err.signal();
        }
    }

    /// The number of a vring that exists.
    fn index(&self, ring: u8, name: &'static str) -> Result<usize, SessionError> {
        let (index, rings) = (usize::from(ring), self.vrings.len());
        match index < rings {
            true => Ok(index),
            false => Err(SessionError::NoRing { name, ring, rings }),
        }
    }

    /// A vring whose number [`index`](Self::index) has checked.
    fn vring(&mut self, index: usize) -> &mut Vring {
        &mut self.vrings[index]
    }

    /// A vring whose size, addresses and position may still change.
    fn stopped(&mut self, ring: u8, name: &'static str) -> Result<&mut Vring, SessionError> {
        let index = self.index(ring, name)?;
        let vring = self.vring(index);
        match vring.running {
            true => Err(SessionError::Started { name, ring }),
            false => Ok(vring),
        }
    }

    /// Stops a vring. Returns its position.
    pub(super) fn get_base(&mut self, ring: u8, name: &'static str) -> Result<u32, SessionError> {
        let index = self.index(ring, name)?;
        let base = self.stop(index);
        self.release_if_stopped(false);
        Ok(base)
    }

    /// Releases the device's resources if no vring runs. If the log of written pages was in use,
    /// the guest may continue elsewhere, and does so if the connection `ends`.
    fn release_if_stopped(&mut self, ends: bool) {
        let migrated = self.used_log().is_some();
        let stopped = self.acquired && !self.vrings.iter().any(|ring| ring.running);
        if stopped && (migrated || ends) {
            self.device.release(migrated);
            self.acquired = false;
        }
    }

    pub(super) fn set_base(
        &mut self,
        ring: u8,
        base: u32,
        name: &'static str,
    ) -> Result<(), SessionError> {
        self.stopped(ring, name)?.base = Some(base);
        Ok(())
    }

    pub(super) fn set_size(
        &mut self,
        ring: u8,
        size: u16,
        name: &'static str,
    ) -> Result<(), SessionError> {
        self.stopped(ring, name)?.size = Some(size);
        self.update(ring.into())
    }

    pub(super) fn set_address(
        &mut self,
        ring: u8,
        address: RingAddress,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let index = self.index(ring, name)?;
        let vring = self.vring(index);
        match vring.address {
            Some(old) if old == address => return Ok(()),
            // Only the logging may change while the vring runs.
            Some(old) if old.is_same_place(&address) => vring.address = Some(address),
            _ => self.stopped(ring, name)?.address = Some(address),
        }
        self.update(index)
    }

    pub(super) fn set_kick(
        &mut self,
        ring: u8,
        has: HasFd,
        fd: Option<OwnedFd>,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let kick = event(ring, has, fd, name)?;
        self.change(ring, name, |vring| {
            (vring.kick, vring.started) = (kick, true);
        })
    }

    pub(super) fn set_call(
        &mut self,
        ring: u8,
        has: HasFd,
        fd: Option<OwnedFd>,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let call = event(ring, has, fd, name)?;
        self.change(ring, name, |vring| vring.call = call)?;
        self.interrupt(ring.into())
    }

    pub(super) fn set_err(
        &mut self,
        ring: u8,
        has: HasFd,
        fd: Option<OwnedFd>,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let err = event(ring, has, fd, name)?;
        let index = self.index(ring, name)?;
        self.vring(index).err = err;
        Ok(())
    }

    pub(super) fn set_enable(
        &mut self,
        ring: u8,
        enable: bool,
        name: &'static str,
    ) -> Result<(), SessionError> {
        let index = self.index(ring, name)?;
        if self.vring(index).enable == Some(enable) {
            return Ok(());
        }
        self.change(ring, name, |vring| vring.enable = Some(enable))
    }

    /// Changes the settings of a vring, and applies them.
    fn change(
        &mut self,
        ring: u8,
        name: &'static str,
        change: impl FnOnce(&mut Vring),
    ) -> Result<(), SessionError> {
        let index = self.index(ring, name)?;
        change(self.vring(index));
        self.update(index)
    }

    /// Applies the settings of a vring: starts it if it is ready, or changes its descriptors and
    /// whether it is enabled if it runs.
    fn update(&mut self, index: usize) -> Result<(), SessionError> {
        let vring = &self.vrings[index];
        if vring.running {
            self.device.control(index, vring.control(self.features));
            return Ok(());
        }
        self.start(index)
    }

    /// Starts a vring if it is ready and there is memory.
    fn start(&mut self, index: usize) -> Result<(), SessionError> {
        let (vring, features) = (&mut self.vrings[index], self.features);
        let Some(memory) = self.memory.as_ref().filter(|_| vring.is_ready()) else {
            return Ok(());
        };
        let outside =
            |OutsideMemory { part, addr }| SessionError::OutsideMemory { ring: index, part, addr };
        let config = vring.config(memory, features).map_err(outside)?;
        if !self.acquired {
            self.device.acquire().map_err(SessionError::Unavailable)?;
            self.acquired = true;
        }
        let packed = features.has(bit::RING_PACKED);
        let records = self.records.as_ref();
        let record = records.and_then(|records| records.record(index, packed, config.size));
        let control = vring.control(features);
        let start = VringStart { memory, config: &config, control, record };
        let recovery = self
            .device
            .start(index, start)
            .map_err(|violation| SessionError::Ring { ring: index, violation })?;
        vring.running = true;
        vring.unclear = recovery == Recovery::Unclear;
        if recovery != Recovery::AsTold {
            self.recovered.push((index, recovery));
        }
        self.interrupt(index)
    }

    fn interrupt(&self, index: usize) -> Result<(), SessionError> {
        self.vrings[index]
            .interrupt()
            .map_err(|violation| SessionError::Ring { ring: index, violation })
    }

    /// Stops a vring. Returns its position.
    fn stop(&mut self, index: usize) -> u32 {
        let vring = &mut self.vrings[index];
        if std::mem::take(&mut vring.running) {
            vring.base = self.device.stop(index).or(vring.base);
        }
        vring.started = false;
        vring.unclear = false;
        vring.kick = None;
        vring.base.unwrap_or(0)
    }

    pub(super) fn stop_all(&mut self) {
        self.device.hold_all();
        for index in 0..self.vrings.len() {
            self.stop(index);
        }
    }

    /// Puts changes into effect. Returns how many queues have changed.
    pub(super) fn commit(&mut self) -> u32 {
        self.device.commit()
    }

    pub(super) fn reset(&mut self) {
        self.stop_all();
        for vring in &mut self.vrings {
            *vring = Vring::default();
        }
    }

    /// Moves the vrings that run to other memory.
    ///
    /// # Errors
    /// The first vring that is not usable there. All such vrings are stopped.
    pub(super) fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), SessionError> {
        let memory = Arc::new(memory.with_log(self.used_log().cloned()));
        let mut result = Ok(());
        for LostVring { vring: ring, base, violation } in self.device.set_memory(&memory) {
            if let Some(vring) = self.vrings.get_mut(ring) {
                vring.running = false;
                vring.base = base.or(vring.base);
            }
            result = result.and(Err(SessionError::Ring { ring, violation }));
        }
        self.memory = Some(memory);
        result
    }

    /// Starts all vrings that were waiting for memory; returns the first error.
    pub(super) fn start_all(&mut self) -> Result<(), SessionError> {
        let mut result = Ok(());
        for index in 0..self.vrings.len() {
            if !self.vrings[index].running {
                let started = self.start(index);
                result = result.and(started);
            }
        }
        result
    }

    /// Whether each vring runs.
    #[cfg(test)]
    pub(super) fn running(&self) -> Vec<bool> {
        self.vrings.iter().map(|ring| ring.running).collect()
    }
}

impl<D: Device> Drop for Vrings<D> {
    fn drop(&mut self) {
        self.stop_all();
        self.release_if_stopped(true);
        self.commit();
    }
}
