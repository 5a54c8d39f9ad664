//! Event channels, through `/dev/xen/evtchn` (linux/xen/evtchn.h).
//!
//! Each channel has a descriptor of its own, so that the owner of the channel also owns its waker.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::c_ulong;

use super::{OpenError, open_device, request};
use crate::DomId;
use crate::events::{Channel, EventError, Events, RemotePort};

const DEVICE: &str = "/dev/xen/evtchn";
const BIND_INTERDOMAIN: c_ulong = request(b'E', 1, 8);
const BIND_UNBOUND_PORT: c_ulong = request(b'E', 2, 4);
const NOTIFY: c_ulong = request(b'E', 4, 4);

/// The event channel device.
#[derive(Debug)]
pub struct Evtchn(());

impl Evtchn {
    /// Checks that the device can be opened.
    ///
    /// # Errors
    /// When the device is missing, or this process may not open it.
    pub fn open() -> Result<Self, OpenError> {
        open_device(DEVICE).map(|_| Self(()))
    }
}

impl Events for Evtchn {
    fn bind(&self, domain: DomId, port: RemotePort) -> Result<Box<dyn Channel>, EventError> {
        let device = open_device(DEVICE).map_err(|error| match error {
            OpenError::Device { error, .. } => EventError::Os(error),
            error => EventError::Os(io::Error::other(error)),
        })?;
        match ioctl(&device, BIND_INTERDOMAIN, [domain.0.into(), port.0]) {
            Ok(local) => Ok(Box::new(Bound { device, port: local })),
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::EINVAL | libc::ESRCH | libc::ENOENT | libc::EPERM | libc::EACCES) => {
                    EventError::Refused { domain, port }
                }
                _ => EventError::Os(error),
            }),
        }
    }
}

/// Opens a channel that domain `to` can bind. Returns the port number that `to` binds, and this
/// end.
pub fn open(to: DomId) -> io::Result<(RemotePort, Box<dyn Channel>)> {
    let device = open_device(DEVICE).map_err(|error| match error {
        OpenError::Device { error, .. } => error,
        error => io::Error::other(error),
    })?;
    let port = ioctl(&device, BIND_UNBOUND_PORT, [to.0.into()])?;
    Ok((RemotePort(port), Box::new(Bound { device, port })))
}

/// A channel that is bound. Closing its descriptor closes it.
#[derive(Debug)]
struct Bound {
    device: OwnedFd,
    /// The port number of our end.
    port: u32,
}

impl Channel for Bound {
    fn notify(&self) {
        // The call fails when the other end is closed, and then no notification is needed.
        let _ = ioctl(&self.device, NOTIFY, [self.port]);
    }

    fn waker(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn take(&self) -> bool {
        // Ports that were signalled are read once and masked until they are written back; only one
        // is bound here.
        let mut ports = [0; 4];
        match rustix::io::read(&self.device, &mut ports) {
            Ok(4) => {
                let _ = rustix::io::write(&self.device, &ports);
                true
            }
            _ => false,
        }
    }
}

/// One ioctl whose argument is a structure of 32-bit numbers; returns what it returns.
fn ioctl<const N: usize>(device: &OwnedFd, request: c_ulong, mut arg: [u32; N]) -> io::Result<u32> {
    debug_assert_eq!(request >> 16, 4 * N as c_ulong);
    // SAFETY: the requests of this module read as much as their number says, which is the size of
    // `arg`.
    let value = unsafe { libc::ioctl(device.as_raw_fd(), request, arg.as_mut_ptr()) };
    u32::try_from(value).map_err(|_| io::Error::last_os_error())
}
