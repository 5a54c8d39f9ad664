//! The hand-over of vrings to another process.

use std::io;
use std::sync::Arc;

use ring::Memory;

use super::{Device, Vrings};
use crate::transport::error::SessionError;
use crate::transport::event::Event;
use crate::transport::feature::{Features, bit};
use crate::transport::message::RingAddress;
use crate::transport::saved::{FileNumber, Files, HandOverError, Positions, SavedVring};
use crate::transport::vring::Vring;

fn unusable(vring: usize, what: impl std::fmt::Display) -> HandOverError {
    HandOverError::Unusable(format!("vring {vring}: {what}"))
}

impl<D: Device> Vrings<D> {
    /// The vrings, for another process.
    pub(in crate::transport) fn save(
        &self,
        files: &mut Files,
    ) -> Result<Vec<SavedVring>, HandOverError> {
        // A front-end names the log only once, so the other process would not get it.
        if self.used_log().is_some() || self.log_is_new {
            return Err(HandOverError::Migrates);
        }
        let saved = self.vrings.iter().map(|vring| save(vring, files));
        Ok(saved.collect::<io::Result<_>>()?)
    }

    /// Describes the vrings as another process had them, in the front-end's memory. None runs yet.
    /// Vrings that were in service must lie within that memory.
    pub(in crate::transport) fn restore(
        &mut self,
        features: u64,
        saved: &[SavedVring],
        memory: Option<Arc<Memory>>,
        files: &mut Files,
    ) -> Result<(), HandOverError> {
        if saved.len() != self.vrings.len() {
            let (theirs, ours) = (saved.len(), self.vrings.len());
            return Err(HandOverError::Unusable(format!("{theirs} vrings in place of {ours}")));
        }
        self.features = Features(features);
        self.device.set_features(Features(features & !bit::LOG_ALL));
        for (index, (vring, saved)) in self.vrings.iter_mut().zip(saved).enumerate() {
            *vring = restore(index, saved, files)?;
            if saved.running {
                let config = memory.as_deref().map(|memory| vring.config(memory, self.features));
                if !matches!(config, Some(Ok(_))) || !vring.is_ready() {
                    return Err(unusable(index, "its ring is outside the guest's memory"));
                }
            }
        }
        self.memory = memory;
        Ok(())
    }

    /// Stops the vrings that are in service, without notice to the front-end. Returns their
    /// positions. [`start_saved`](Self::start_saved) starts them again, here or elsewhere.
    pub(in crate::transport) fn pause(&mut self) -> Positions {
        self.device.hold_all();
        let mut positions = vec![None; self.vrings.len()];
        for (index, vring) in self.vrings.iter_mut().enumerate() {
            if std::mem::take(&mut vring.running) {
                vring.base = self.device.stop(index).or(vring.base);
                positions[index] = vring.base;
            }
        }
        positions
    }

    /// Starts those vrings that have a position, from there. Queues change places with
    /// [`commit`](Self::commit).
    pub(in crate::transport) fn start_saved(
        &mut self,
        positions: &[Option<u32>],
    ) -> Result<(), SessionError> {
        for (index, position) in positions.iter().enumerate().take(self.vrings.len()) {
            if position.is_some() {
                self.vrings[index].base = *position;
                self.start(index)?;
            }
        }
        Ok(())
    }
}

fn save(vring: &Vring, files: &mut Files) -> io::Result<SavedVring> {
    let mut event =
        |event: &Option<Arc<Event>>| event.as_ref().map(|event| files.add(&**event)).transpose();
    let (kick, call, err) = (event(&vring.kick)?, event(&vring.call)?, event(&vring.err)?);
    let address = vring
        .address
        .map(|RingAddress { flags, desc, used, avail, log }| (flags, [desc, used, avail, log]));
    let &Vring { size, base, enable, started, running, .. } = vring;
    Ok(SavedVring { size, address, base, enable, started, running, kick, call, err })
}

fn restore(index: usize, saved: &SavedVring, files: &mut Files) -> Result<Vring, HandOverError> {
    let mut event = |number: Option<FileNumber>| -> Result<_, HandOverError> {
        let Some(number) = number else { return Ok(None) };
        let event = Event::adopt(files.take(number)?);
        Ok(Some(Arc::new(event.ok_or_else(|| unusable(index, "a descriptor is no eventfd"))?)))
    };
    let (kick, call, err) = (event(saved.kick)?, event(saved.call)?, event(saved.err)?);
    let address = saved.address.map(|(flags, [desc, used, avail, log])| RingAddress {
        flags,
        desc,
        used,
        avail,
        log,
    });
    let &SavedVring { size, base, enable, started, .. } = saved;
    Ok(Vring { size, address, base, enable, started, kick, call, err, ..Vring::default() })
}
