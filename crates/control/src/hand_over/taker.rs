//! The taker: the new process, which takes over from a running daemon.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use frame::Mac;
use network::fabric::Fabric;
use switch::{Network, Station};
use tracing::info;
use vhost_user::transport::saved::{Files, SavedListener};

use super::channel::{Channel, Received};
use super::giver::now_ns;
use super::message::{
    FORMAT, FromGiver, FromTaker, PausedPort, SavedAddresses, SavedPort, SavedStation,
};
use crate::api::{Manifest, ManifestPort, Reply};
use crate::backend::BackendError;
use crate::client::{Client, ClientError};
use crate::config::{Config, PortSpec};
use crate::ports::Ports;

/// The time that the giver has for each message, including the time to park ports.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a running daemon cannot be taken over. The running daemon continues as before.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// There is no running daemon, or it refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The configuration does not fit what the daemon serves, or the daemon hands over state that
    /// this version does not understand.
    #[error("{}; the running daemon goes on", .0.join("\n"))]
    Refused(Vec<String>),
    /// The state of a port does not fit.
    #[error("port {name:?}: {error}; the running daemon goes on")]
    Port {
        /// The port.
        name: String,
        /// Why it cannot be restored.
        error: BackendError,
    },
    /// The daemon went away, or sent an invalid message.
    #[error("the running daemon does not hand over ({0}); see its log")]
    Broken(#[from] io::Error),
}

/// A listening socket that was handed over.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub socket: OwnedFd,
    pub file: (u64, u64),
}

/// A running daemon that is about to hand over.
pub struct TakeOver {
    channel: Channel,
    manifest: Manifest,
}

/// The state that the daemon has handed over, apart from positions.
pub(crate) struct Incoming {
    channel: Channel,
    pub control: Adopted,
    pub metrics: Option<Adopted>,
    ports: HashMap<String, (SavedPort, Files)>,
    /// The stations that the daemon had learned.
    learned: Vec<SavedStation>,
    /// The IP addresses that stations were heard to have.
    addresses: Vec<SavedAddresses>,
}

impl TakeOver {
    /// Asks the daemon at the control socket of `config`, and compares its manifest with `config`.
    /// Nothing changes yet.
    ///
    /// # Errors
    /// When there is no daemon, or one of the two refuses.
    pub fn begin(config: &Config) -> Result<TakeOver, TakeOverError> {
        let client = Client::new(PathBuf::from(&config.socket));
        let (reply, stream) = client.take_over(vec![FORMAT])?;
        let Reply::TakeOver(manifest) = reply else {
            return Err(TakeOverError::Refused(vec![
                "the daemon's answer does not fit".to_owned(),
            ]));
        };
        let problems = problems(&manifest, config);
        match problems.is_empty() {
            true => Ok(TakeOver { channel: Channel::new(stream), manifest }),
            false => Err(TakeOverError::Refused(problems)),
        }
    }

    /// Whether the daemon's listener of metrics is that of `config`.
    pub fn has_metrics_of(&self, config: &Config) -> bool {
        let place = config.metrics.as_ref().map(|metrics| metrics.place());
        self.manifest.metrics.is_some() && self.manifest.metrics == place
    }

    /// Asks for the state and receives it. From then on the daemon's control threads wait, and its
    /// rings continue.
    pub(crate) fn receive(mut self) -> Result<Incoming, TakeOverError> {
        self.channel.send(&FromTaker::Prepare, b"", &[], Instant::now() + TIMEOUT)?;
        let mut sockets = None;
        let mut ports = HashMap::new();
        loop {
            let Received { message, files, .. } = self.channel.receive(Instant::now() + TIMEOUT)?;
            let mut files = Files::new(files);
            match message {
                FromGiver::Sockets { control, metrics } => {
                    let metrics = metrics.map(|metrics| adopt(metrics, &mut files)).transpose()?;
                    sockets = Some((adopt(control, &mut files)?, metrics));
                }
                FromGiver::Port { name, state } if ports.len() < self.manifest.ports.len() => {
                    ports.insert(name, (*state, files));
                }
                FromGiver::Stations { learned, addresses } => {
                    let (control, metrics) = sockets.ok_or_else(out_of_turn)?;
                    let channel = self.channel;
                    return Ok(Incoming { channel, control, metrics, ports, learned, addresses });
                }
                FromGiver::Refused(reason) => return Err(TakeOverError::Refused(vec![reason])),
                FromGiver::Port { .. } | FromGiver::Positions { .. } => {
                    return Err(out_of_turn().into());
                }
            }
        }
    }
}

fn adopt(saved: SavedListener, files: &mut Files) -> Result<Adopted, TakeOverError> {
    let socket = files.take(saved.socket).map_err(|_| out_of_turn())?;
    // The other process shares the socket, and could have made it block.
    rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
    Ok(Adopted { socket, file: saved.file })
}

fn out_of_turn() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message out of turn")
}

impl Incoming {
    /// Adds the ports of the configuration that the daemon has handed over, and returns the others.
    pub fn restore(
        &mut self,
        ports: &mut Ports,
        specs: &[PortSpec],
    ) -> Result<Vec<PortSpec>, TakeOverError> {
        let mut others = Vec::new();
        for spec in specs {
            let Some(saved) = self.ports.remove(&spec.name) else {
                others.push(spec.clone());
                continue;
            };
            let name = &spec.name;
            ports
                .restore(spec.clone(), saved)
                .map_err(|error| TakeOverError::Port { name: name.clone(), error })?;
        }
        match self.ports.keys().next() {
            None => Ok(others),
            Some(name) => Err(TakeOverError::Refused(vec![unknown(name)])),
        }
    }

    /// Takes the rings of all restored ports, and starts them. The workers serve all of them
    /// together.
    pub fn take(&mut self, fabric: &Fabric, ports: &Ports) -> Result<(), TakeOverError> {
        self.learn(fabric, ports);
        fabric.hold();
        let by = Instant::now() + TIMEOUT;
        self.channel.send(&FromTaker::Ready, b"", &[], by)?;
        let Received { message, bytes, .. } = self.channel.receive(by)?;
        let (mut paused, since) = match message {
            FromGiver::Positions { ports, since } => (ports, since),
            FromGiver::Refused(reason) => return Err(TakeOverError::Refused(vec![reason])),
            _ => return Err(out_of_turn().into()),
        };
        let mut bytes = &bytes[..];
        for (_, port) in &mut paused {
            let (own, rest) = bytes.split_at_checked(port.len()).ok_or_else(out_of_turn)?;
            (port.bytes, bytes) = (own.to_vec(), rest);
        }
        let mut paused: HashMap<String, PausedPort> = paused.into_iter().collect();
        let positions: Vec<_> = ports
            .to_hand_over()
            .into_iter()
            .map(|(name, port)| {
                let paused = paused.remove(name)?;
                ports.continue_counts(name, &paused.counts);
                Some((name, port, paused))
            })
            .collect::<Option<_>>()
            .ok_or_else(out_of_turn)?;
        // The rings belong to the daemon until this message is sent, and only to this process
        // afterwards.
        self.channel.send(&FromTaker::Taken, b"", &[], by)?;
        let count = positions.len();
        let pending: Vec<_> =
            positions.into_iter().map(|(name, port, paused)| (name, port.start(paused))).collect();
        for (name, started) in pending {
            if let Err(reason) = started.wait() {
                tracing::warn!(port = %name, reason, "cannot go on with a port that was taken over");
            }
        }
        fabric.release();
        self.channel.cut();
        let outage_us = now_ns().saturating_sub(since) / 1000;
        info!(ports = count, outage_us, "took over from the running daemon");
        Ok(())
    }

    fn learn(&self, fabric: &Fabric, ports: &Ports) {
        let ids: HashMap<String, _> =
            ports.names().into_iter().map(|(id, name)| (name, id)).collect();
        let place = |SavedStation { vlan, mac, port }: &SavedStation| {
            let network = vlan.map_or(Some(Network::UNTAGGED), Network::vlan)?;
            Some((Station { network, mac: Mac(*mac) }, *ids.get(port)?))
        };
        fabric.learn(self.learned.iter().filter_map(place));
        let claims = |SavedAddresses { station, addresses }: &SavedAddresses| {
            let (station, port) = place(station)?;
            Some(addresses.iter().map(move |address| (station, port, *address)).collect::<Vec<_>>())
        };
        fabric.restore_addresses(self.addresses.iter().filter_map(claims).flatten());
    }
}

fn unknown(name: &str) -> String {
    format!(
        "the running daemon serves port {name:?}, which the configuration does not have: add the \
         port to the configuration, or remove it from the daemon"
    )
}

/// The parts of the daemon's work that the configuration does not continue.
fn problems(manifest: &Manifest, config: &Config) -> Vec<String> {
    if manifest.format != FORMAT {
        return vec![format!(
            "the running daemon (version {}) hands over state of format {}, and this version \
             understands format {FORMAT}: restart the daemon instead",
            manifest.release, manifest.format
        )];
    }
    let problem = |port: &ManifestPort| {
        let ManifestPort { name, attachment, queues } = port;
        let Some(spec) = config.ports.iter().find(|spec| spec.name == *name) else {
            return Some(unknown(name));
        };
        let (own, count) = (spec.kind.describe(), spec.queue_pairs(config.workers));
        if own != *attachment {
            return Some(format!(
                "port {name:?} is {attachment} of the running daemon, and {own} in the configuration"
            ));
        }
        (count != *queues).then(|| {
            format!(
                "port {name:?} has {queues} queues in the running daemon, and {count} by the \
                 configuration: give queues = {queues}"
            )
        })
    };
    manifest.ports.iter().filter_map(problem).collect()
}
