//! Maps, programs and links of the kernel's BPF, by its one system call (linux/bpf.h).

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::program::{Instruction, Key};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

/// Where a program runs: in the driver; or, for any device, after the kernel has allocated its own
/// packet for the frame.
const DRIVER: u32 = 1 << 2;
const GENERIC: u32 = 1 << 1;

/// Calls the kernel.
///
/// # Safety
/// Addresses in `attributes` must be those of as many bytes as the command reads there, and must
/// last for the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads no more than that many bytes of the attributes; what they name is up
    // to the caller.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// As [`bpf`], for commands that open a descriptor.
///
/// # Safety
/// As for [`bpf`].
unsafe fn open<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: up to the caller.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: just opened (with descriptors of this kind, to be closed on exec), and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    device: u32,
    attach: u32,
    flags: u32,
}

/// A map from `K` to `V`, both of which are plain bytes.
#[derive(Debug)]
pub struct Map<K, V> {
    fd: OwnedFd,
    holds: PhantomData<(K, V)>,
}

impl<K: Copy, V: Copy> Map<K, V> {
    fn create(kind: u32, entries: u32) -> io::Result<Self> {
        let create =
            MapCreate { kind, key: size_of::<K>() as u32, value: size_of::<V>() as u32, entries };
        // SAFETY: names no address.
        Ok(Map { fd: unsafe { open(MAP_CREATE, &create)? }, holds: PhantomData })
    }

    /// Its descriptor, for a program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn element(&self, key: &K, value: Option<&V>) -> MapElement {
        let map = self.fd.as_raw_fd() as u32;
        let value = value.map_or(0, |value| (&raw const *value) as u64);
        MapElement { map, pad: 0, key: (&raw const *key) as u64, value, flags: 0 }
    }

    /// Enters `value` under `key`.
    pub fn set(&self, key: &K, value: &V) -> io::Result<()> {
        // SAFETY: both last for the call, and have as many bytes as the map was made for.
        unsafe { bpf(MAP_UPDATE, &self.element(key, Some(value))).map(drop) }
    }

    /// Removes the entry of `key`.
    pub fn remove(&self, key: &K) -> io::Result<()> {
        // SAFETY: as above.
        unsafe { bpf(MAP_DELETE, &self.element(key, None)).map(drop) }
    }
}

impl Map<Key, u32> {
    /// A hash map.
    pub fn hash(entries: u32) -> io::Result<Self> {
        Self::create(MAP_TYPE_HASH, entries)
    }
}

impl Map<u32, u32> {
    /// A list of sockets to redirect to.
    pub fn sockets(entries: u32) -> io::Result<Self> {
        Self::create(MAP_TYPE_XSKMAP, entries)
    }

    /// Enters a socket. The kernel removes the entry when the socket is closed.
    pub fn set_fd(&self, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.set(&key, &(socket.as_raw_fd() as u32))
    }
}

/// Loads an XDP program.
pub fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let load = ProgLoad {
        kind: PROG_TYPE_XDP,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
    };
    // SAFETY: the list has this number of instructions, and the name ends with zero. Both last for
    // the call.
    unsafe { open(PROG_LOAD, &load) }
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// In the device's driver.
    Driver,
    /// In front of the kernel's own protocols.
    Generic,
}

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attach::Driver => "XDP in the driver",
            Attach::Generic => "generic XDP",
        })
    }
}

/// Attaches a program to a device, as long as the descriptor is open.
pub fn attach(program: &OwnedFd, device: u32) -> io::Result<(OwnedFd, Attach)> {
    let link = |flags| {
        let create =
            LinkCreate { program: program.as_raw_fd() as u32, device, attach: ATTACH_XDP, flags };
        // SAFETY: names no address.
        unsafe { open(LINK_CREATE, &create) }
    };
    match link(DRIVER) {
        Ok(fd) => Ok((fd, Attach::Driver)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Ok((link(GENERIC)?, Attach::Generic))
        }
        Err(error) => Err(error),
    }
}
