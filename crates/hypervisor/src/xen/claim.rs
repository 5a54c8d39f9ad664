//! The right to be this domain's backend for a class of devices, which one process has at a time.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{OpenError, open_device};

/// How long a claim waits for a process that is just ending.
const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);

/// A class of devices that a domain may be the backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Network interfaces.
    Vif,
    /// Disks.
    Vbd,
}

impl Class {
    /// The device whose lock stands for the class. Each device exists once in the domain,
    /// independent of the folders and namespaces of a process, and no other program locks it.
    fn device(self) -> &'static str {
        match self {
            Class::Vif => "/dev/xen/evtchn",
            Class::Vbd => "/dev/xen/gntdev",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Class::Vif => "vifs",
            Class::Vbd => "disks",
        }
    }
}

/// The right, until it is dropped. The kernel releases it when the process ends in any way.
#[derive(Debug)]
#[must_use]
pub struct Claim(#[expect(dead_code, reason = "kept to be closed")] OwnedFd);

impl Claim {
    /// Claims the devices of a class.
    ///
    /// # Errors
    /// When the device is missing, or another process serves the class.
    pub fn of(class: Class) -> Result<Claim, OpenError> {
        Claim::by(open_device(class.device())?, class, PATIENCE)
    }

    /// Claims them by the lock of a file. If another process has the lock, the call waits for up to
    /// `patience`.
    fn by(device: OwnedFd, class: Class, patience: Duration) -> Result<Claim, OpenError> {
        let since = Instant::now();
        loop {
            match flock(&device, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Claim(device)),
                Err(Errno::WOULDBLOCK) if since.elapsed() < patience => std::thread::sleep(STEP),
                Err(Errno::WOULDBLOCK) => {
                    return Err(OpenError::Claimed { what: class.name(), lock: class.device() });
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(OpenError::Os(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_is_refused_as_long_as_the_first_one_is_held() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let claim = |patience| {
            let device = file.reopen().unwrap().into();
            Claim::by(device, Class::Vif, Duration::from_millis(patience))
        };
        let first = claim(0).unwrap();
        let refused = claim(50).unwrap_err();
        assert!(matches!(refused, OpenError::Claimed { what: "vifs", .. }), "{refused}");
        // A waiting claim succeeds as soon as the first one is gone.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| claim(60_000));
            drop(first);
            assert!(waits.join().unwrap().is_ok());
        });
    }
}
