//! Why a TAP cannot be a port.

use std::io;

use network::fabric::FabricError;
use ring::region::MapError;
use thiserror::Error;

/// Why a TAP device cannot be a port.
#[derive(Debug, Error)]
pub enum TapError {
    /// Not a name that an interface can have.
    #[error("`{0}` can't be an interface's name: 1 to 15 bytes without spaces, `/`, `:` and `%`")]
    Name(String),
    /// The device cannot be opened: the process lacks the right, or the tun driver is missing.
    #[error("can't open TAP device `{name}`: {error}{}", hint(.error))]
    Open {
        /// The device.
        name: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The device exists, but cannot be configured.
    #[error("can't set {what} of `{name}`: {error}")]
    Set {
        /// The device.
        name: String,
        /// The setting.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// No memory for buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The fabric refused the port.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// What another process handed over is not the device's.
    #[error("the descriptors that came are not those of `{0}`")]
    Foreign(String),
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; run as root or with CAP_NET_ADMIN",
        Some(libc::EACCES) => {
            "; run as root, or open /dev/net/tun to its users (udev gives it mode 0666)"
        }
        Some(libc::ENOENT) => "; load the kernel's tun driver",
        Some(libc::EINVAL) => "; a device of that name exists that is no multi-queue TAP",
        Some(libc::EBUSY) => "; another process uses it",
        Some(libc::E2BIG) => "; it has fewer queues than asked for",
        _ => "",
    }
}
