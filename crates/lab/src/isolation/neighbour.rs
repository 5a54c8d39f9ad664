//! The common part of all neighbours: a name of its own, a step that it repeats, and a thread that
//! repeats it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring::driver::Piece;
use vhost_user_driver::DriverError;

use super::station::{Station, VNET};
use load::cpu;

/// An Ethernet type for experiments (IEEE 802, local experimental).
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Longest time until the daemon fetches the first frame.
const ANSWER: Duration = Duration::from_secs(30);

/// One of the two neighbours of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The same load without the attack.
    Fair,
    /// The attack.
    Hostile,
}

/// The sockets that a neighbour connects to.
#[derive(Clone, Debug)]
pub struct Sockets {
    /// The folder with the sockets of the innocents' daemon.
    pub shared: PathBuf,
    /// The folder with the sockets of a second daemon, whose ports have the same names.
    pub decoy: Option<PathBuf>,
}

impl Sockets {
    /// Path of the socket of the neighbour's port number `port`.
    pub fn port(&self, port: usize) -> PathBuf {
        self.shared.join(name(port)).with_extension("sock")
    }

    /// The same, but on the second daemon for the fair neighbour: only its use of the processors is
    /// beside the innocents then.
    pub fn decoy(&self, role: Role, port: usize) -> PathBuf {
        let folder: &Path = match (role, &self.decoy) {
            (Role::Fair, Some(decoy)) => decoy,
            _ => &self.shared,
        };
        folder.join(name(port)).with_extension("sock")
    }
}

/// The name of the neighbour's port number `port`.
pub fn name(port: usize) -> String {
    format!("neighbour-{port}")
}

/// An action that a neighbour repeats.
pub trait Neighbour {
    /// Acts once, and returns the time to wait until the next action.
    ///
    /// # Errors
    /// When the daemon stopped the neighbour, or no longer answers it.
    fn step(&mut self) -> Result<Duration, DriverError>;
}

/// The end of a neighbour's thread.
#[derive(Debug)]
pub struct Ended {
    /// The number of the neighbour's actions.
    pub steps: u64,
    /// The reason why the neighbour could not continue, if it could not.
    pub error: Option<DriverError>,
}

/// A neighbour that is at work.
pub struct Running {
    stop: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
    thread: Option<JoinHandle<Option<DriverError>>>,
}

impl Running {
    /// Starts a thread, on this CPU if one is given, that creates the neighbour and runs it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start<N: Neighbour>(
        cpu: Option<usize>,
        make: impl FnOnce() -> Result<N, DriverError> + Send + 'static,
    ) -> io::Result<Running> {
        let stop = Arc::new(AtomicBool::new(false));
        let steps = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&steps));
        let work = move || -> Result<(), DriverError> {
            if let Some(cpu) = cpu {
                cpu::pin(cpu).map_err(|e| DriverError::Io("CPU of a neighbour", e))?;
            }
            let mut neighbour = make()?;
            while !stopped.load(Ordering::Relaxed) {
                let pause = neighbour.step()?;
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(pause);
            }
            Ok(())
        };
        let thread =
            std::thread::Builder::new().name("neighbour".into()).spawn(move || work().err())?;
        Ok(Running { stop, steps, thread: Some(thread) })
    }

    /// How often the neighbour has done what it does.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Whether the neighbour had to stop.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops it.
    pub fn stop(mut self) -> Ended {
        let error = self.join();
        Ended { steps: self.steps(), error }
    }

    fn join(&mut self) -> Option<DriverError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.join();
    }
}

/// The Ethernet address of guest number `number`.
pub fn address(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 7, number]
}

/// A frame of `len` bytes with a `virtio_net_hdr` before it.
pub fn frame(to: u8, from: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; VNET];
    bytes.extend(address(to));
    bytes.extend(address(from));
    bytes.extend(ETHERTYPE);
    bytes.resize(VNET + len.max(60), 0);
    bytes
}

/// A broadcast of guest number `number`, with a `virtio_net_hdr` before it.
pub fn announcement(number: u8) -> Vec<u8> {
    let mut bytes = frame(number, number, 60);
    bytes[VNET..VNET + 6].fill(0xff);
    bytes
}

/// Sends a broadcast, from which the switch learns where guest number `number` is.
///
/// # Errors
/// When the daemon breaks the protocol.
pub fn announce(station: &mut Station, number: u8) -> Result<(), DriverError> {
    let bytes = announcement(number);
    for queue in 0..station.queues() {
        let Some(addr) = station.buffer(queue) else { continue };
        station.write(addr, &bytes);
        station.send(queue, addr, &[Piece { addr, len: bytes.len() as u32 }]);
        station.publish(queue);
        let sent = Instant::now();
        while station.reclaim(queue)? == 0 {
            if sent.elapsed() > ANSWER {
                return Err(DriverError::Refused("the first frame"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}
