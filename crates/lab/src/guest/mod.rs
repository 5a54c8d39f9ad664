//! Stock Linux guests under QEMU: Debian's own kernel, busybox, iperf, ethtool and e2fsprogs,
//! driven through a command channel.
//!
//! [`Image`] makes the initramfs, [`Accel`] says whether KVM really runs a guest here, [`Spec`]
//! describes a guest, and [`Guest`] is one that runs. A guest leaves nothing behind: its channels
//! are unnamed sockets, its disk is its memory, and it dies with the process that started it.

mod accel;
pub(crate) mod agent;
mod boot_disk;
mod deadline;
mod device;
mod emulator;
mod image;
mod machine;
mod migration;
mod namespace;
mod pace;
mod probe;
mod process;
mod qmp;
mod release;
mod shell;
mod transcript;
mod tsc;
pub(crate) mod wait_limit;

pub use accel::Accel;
pub use agent::{Job, Output};
pub use boot_disk::{Firmware, make_boot_disk};
pub use deadline::Deadline;
pub use device::{DiskLink, Link, Nic};
pub use emulator::Emulator;
pub use frame::Mac;
pub use image::{Extras, Image};
pub use machine::{Guest, Spec};
pub use migration::Migrated;
pub use namespace::Namespace;
pub use process::{ChildProcess, let_run};
pub use release::Release;
pub use shell::Shell;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of a guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Something that the image is made of is not installed or not downloaded.
    #[error("{what} is missing: run scripts/deps {part}")]
    Missing {
        /// A command, or what the file holds.
        what: String,
        /// The part of the script that installs it.
        part: &'static str,
    },
    /// A tool that the image or a namespace is made with failed.
    #[error("{tool} failed: {stderr}")]
    Tool {
        /// The command.
        tool: String,
        /// The standard error of the script.
        stderr: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A process could not be started, or a channel to it broke.
    #[error("{what}: {source}")]
    Channel {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// QEMU, or a domain, ended unexpectedly.
    #[error("guest {name} ended: {console}")]
    Ended {
        /// The guest.
        name: String,
        /// The end of its console, QEMU's own messages included.
        console: String,
    },
    /// The guest did not come up, or a command did not end, in time.
    #[error(
        "guest {name}: {what} took longer than {limit:?}, without the time that the machine was \
         busy otherwise; console: {console}"
    )]
    Late {
        /// The guest.
        name: String,
        /// The condition that was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// The end of its console.
        console: String,
    },
    /// The guest restarted while a command ran in it.
    #[error("guest {name} restarted while it ran: {command}")]
    Restarted {
        /// The guest.
        name: String,
        /// The command.
        command: String,
    },
    /// A command that had to succeed did not.
    #[error("guest {name}: `{command}` ended with {code}: {text}")]
    Failed {
        /// The guest.
        name: String,
        /// The command.
        command: String,
        /// Its exit code.
        code: i32,
        /// The output of the command.
        text: String,
    },
    /// QEMU's monitor refused a command.
    #[error("guest {name}: the monitor refused {command}: {answer}")]
    Refused {
        /// The guest.
        name: String,
        /// The QMP command.
        command: String,
        /// Its answer.
        answer: String,
    },
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}
