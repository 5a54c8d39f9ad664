//! A network namespace of its own, so that an experiment never touches the host's interfaces.

use super::{ChildProcess, GuestError};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace. It has no name and no file: a sleeping process holds it, and it goes, with
/// all interfaces in it, when that process does.
#[derive(Debug)]
pub struct Namespace {
    holder: ChildProcess,
}

impl Namespace {
    /// Makes one, with the loopback interface up. Needs root.
    ///
    /// # Errors
    /// When `unshare` or `ip` fails, or is not installed.
    pub fn new() -> Result<Namespace, GuestError> {
        let mut command = ChildProcess::command("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let mut holder = ChildProcess::start(&mut command)
            .map_err(|source| GuestError::Channel { what: "cannot start unshare", source })?;
        let of = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net")).ok();
        let (ours, id) = (of("self"), holder.id().to_string());
        while of(&id).is_none_or(|theirs| Some(&theirs) == ours.as_ref()) {
            if holder.ended().is_some() {
                return Err(GuestError::Tool {
                    tool: "unshare --net".into(),
                    stderr: "it takes root".into(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let namespace = Namespace { holder };
        namespace.run("ip", ["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Connects hosts to one wire, each by an interface `e0` with its address. The wire is a bridge
    /// in a namespace, which is returned.
    ///
    /// # Errors
    /// When namespaces or interfaces cannot be made.
    pub fn wire<'a>(
        hosts: impl IntoIterator<Item = (&'a Namespace, &'a str)>,
    ) -> Result<Namespace, GuestError> {
        let wire = Namespace::new()?;
        wire.ip("link add u0 type bridge\nlink set u0 up")?;
        for (n, (host, address)) in hosts.into_iter().enumerate() {
            let id = host.id();
            wire.ip(&format!(
                "link add v{n} type veth peer name e0 netns {id}\nlink set v{n} master u0 up"
            ))?;
            host.ip(&match address.contains(':') {
                true => format!("address add {address}/64 dev e0 nodad\nlink set e0 up"),
                false => format!("address add {address}/24 dev e0\nlink set e0 up"),
            })?;
            // As on a wire, no checksum is left to the receiver's card.
            host.run("ethtool", ["-K", "e0", "tx", "off"])?;
        }
        Ok(wire)
    }

    /// A process inside, by which other tools name it.
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    /// A command line for [`ChildProcess::start`] that runs `program` inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = ChildProcess::command("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg("--").arg(program);
        command
    }

    /// Opens a socket inside, which serves this process from then on. Only the thread that opens it
    /// moves there, and ends.
    ///
    /// # Errors
    /// When the namespace is gone, or `open` fails.
    pub fn open<T: Send>(&self, open: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let inside = || {
            let namespace = File::open(format!("/proc/{}/ns/net", self.id()))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            open()
        };
        std::thread::scope(|scope| {
            scope.spawn(inside).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        })
    }

    /// Runs `program` inside to its end, and gives what it printed.
    ///
    /// # Errors
    /// When it cannot be started or ends with anything but success.
    pub fn run<A: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = A>,
    ) -> Result<String, GuestError> {
        let done = self
            .command(program)
            .args(args)
            .output()
            .map_err(|source| GuestError::Channel { what: "cannot start nsenter", source })?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        Err(GuestError::Tool {
            tool: program.into(),
            stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
        })
    }

    /// Runs several `ip` commands, one a line.
    ///
    /// # Errors
    /// As [`Namespace::run`]; the commands after the failing one are not run.
    pub fn ip(&self, lines: &str) -> Result<(), GuestError> {
        lines.lines().try_for_each(|line| self.run("ip", line.split_whitespace()).map(drop))
    }
}
