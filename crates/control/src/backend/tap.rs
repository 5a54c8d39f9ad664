//! Ports of kind `tap`: the host.

use std::io;
use std::sync::Arc;

use ::vhost_user::net::StartError;
use ::vhost_user::transport::saved::{FileNumber, Files, HandOverError};
use hostlink::tap::{Tap, TapConfig};
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use switch::PortId;

use super::{Backend, BackendError, Condition};
use crate::api::PortState;
use crate::config::PortSpec;
use crate::hand_over::message::{PausedPort, SavedPort};
use crate::hand_over::port::{HandOver, Pending};

/// An interface of the host in service.
struct TapPort {
    /// The interface's name.
    device: String,
    tap: Tap,
}

/// Puts a port into service.
pub(super) fn start(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    device: &str,
    restrictions: &RestrictionsTemplate,
    queues: u16,
) -> Result<Box<dyn Backend>, BackendError> {
    let tap = Tap::start(Arc::clone(fabric), config(spec, device, restrictions, queues))?;
    Ok(Box::new(TapPort { device: device.to_owned(), tap }))
}

/// Puts a port into service whose queues another process has opened.
pub(super) fn restore(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    device: &str,
    restrictions: &RestrictionsTemplate,
    queues: u16,
    (numbers, mut files): (Vec<FileNumber>, Files),
) -> Result<Box<dyn Backend>, BackendError> {
    let config = config(spec, device, restrictions, queues);
    let files = numbers.into_iter().map(|number| files.take(number));
    let files = files.collect::<Result<_, HandOverError>>().map_err(StartError::from)?;
    let tap = Tap::restore(Arc::clone(fabric), config, files)?;
    Ok(Box::new(TapPort { device: device.to_owned(), tap }))
}

fn config(
    spec: &PortSpec,
    device: &str,
    restrictions: &RestrictionsTemplate,
    queues: u16,
) -> TapConfig {
    TapConfig {
        device: device.to_owned(),
        queues,
        rule: spec.rule(),
        mtu: spec.mtu,
        policy: spec.options.policy,
        restrictions: restrictions.instantiate(),
    }
}

impl HandOver for TapPort {
    fn park(&self) -> Result<(SavedPort, Files), String> {
        let mut files = Files::default();
        let queues = self.tap.files().and_then(|queues| {
            queues.into_iter().map(|queue| files.add(queue)).collect::<io::Result<_>>()
        });
        Ok((SavedPort::Tap { queues: queues.map_err(|error| error.to_string())? }, files))
    }

    fn pause(&self) -> Pending<Option<PausedPort>> {
        let queues = self.tap.hold();
        let length = |frame: &Vec<u8>| frame.len() as u32;
        let frames = queues.iter().map(|frames| frames.iter().map(length).collect()).collect();
        let bytes = queues.concat().concat();
        let paused = PausedPort { frames, bytes, ..PausedPort::default() };
        Pending::new(|| Some(paused))
    }

    fn unpark(&self) -> Pending<()> {
        self.tap.put_back();
        Pending::new(|| ())
    }

    fn start(&self, paused: PausedPort) -> Pending<Result<(), String>> {
        let mut bytes = &paused.bytes[..];
        let mut frame = |len: &u32| {
            let (frame, rest) = bytes.split_at_checked(*len as usize)?;
            bytes = rest;
            Some(frame.to_vec())
        };
        let queues: Vec<Vec<Vec<u8>>> = paused
            .frames
            .iter()
            .map(|lengths| lengths.iter().filter_map(&mut frame).collect())
            .collect();
        self.tap.insert(&queues);
        self.tap.put_back();
        Pending::new(|| Ok(()))
    }
}

impl Backend for TapPort {
    fn id(&self) -> Option<PortId> {
        Some(self.tap.port())
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        // A port whose device is gone cannot be handed over.
        self.failure().is_none().then_some(self)
    }

    fn failure(&self) -> Option<String> {
        self.tap.stopped().map(|error| error.to_string())
    }

    fn condition(&self) -> Condition {
        match self.failure() {
            Some(reason) => Condition::new(PortState::Stopped, Some(reason)),
            // An interface whose state cannot be read has moved to another namespace.
            None if self.tap.is_up().unwrap_or(true) => Condition::new(PortState::Connected, None),
            None => {
                let device = &self.device;
                let reason = format!("the interface is down: `ip link set {device} up` sets it up");
                Condition::new(PortState::Down, Some(reason))
            }
        }
    }
}
