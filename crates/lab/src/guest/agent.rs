//! The host's end of the command channel: lines over a socket that QEMU shows the guest as a
//! virtio-serial port.
//!
//! Commands run at the same time as others and answer when they are done, so every line carries the
//! command's own number and the boot that it was meant for: output is never taken for another
//! command's, and what a reset cuts off is an error. The program `agent/main.rs` of this package is
//! the other end and describes the lines.

mod message;

use message::{AgentMessage, escaped};

use super::GuestError;
use super::transcript::Transcript;
use super::wait_limit::{Clock, WaitLimit};
use crate::interrupt;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The program at the guest's end.
pub(crate) const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
/// The end of the first process of a guest, which starts the program.
pub(super) const SCRIPT: &str = include_str!("agent.sh");
/// How often a waiting call checks for an interrupt by the user.
const SLICE: Duration = Duration::from_millis(100);
/// How long a guest may take none of the bytes that are sent to it.
const SEND_LIMIT: Duration = Duration::from_secs(600);

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit code; 128 + n when signal n ended it.
    pub code: i32,
    /// The output, standard error included: the last 1,000,000 bytes.
    pub text: String,
}

/// The channel, shared by the guest and its running jobs.
#[derive(Debug)]
pub(crate) struct Agent {
    name: String,
    /// The clock that limits of waits are counted in.
    clock: Clock,
    stream: Mutex<UnixStream>,
    state: Mutex<State>,
    changed: Condvar,
    /// The end of what the guest's console and QEMU printed.
    console: Mutex<Vec<u8>>,
    transcript: Transcript,
}

#[derive(Debug, Default)]
struct State {
    /// The boot that speaks; none before the first hello.
    boot: Option<String>,
    /// How many hellos were heard.
    boots: u32,
    last_id: u64,
    done: HashMap<u64, Output>,
    /// The number of the guest's channel. Earlier channels are closed.
    channel: u32,
    /// Whether the channel was closed, or its guest is gone.
    ended: bool,
}

/// A command that runs in a guest. Dropping it leaves it running.
#[derive(Debug)]
pub struct Job {
    agent: Arc<Agent>,
    boot: String,
    id: u64,
    command: String,
}

impl Agent {
    /// Starts to listen to the channel, and to the console.
    pub(crate) fn new(
        name: &str,
        stream: UnixStream,
        console: impl io::Read + Send + 'static,
        clock: Clock,
    ) -> io::Result<Arc<Agent>> {
        let agent = Arc::new(Agent {
            name: name.to_owned(),
            clock,
            stream: Mutex::new(stream.try_clone()?),
            state: Mutex::default(),
            changed: Condvar::new(),
            console: Mutex::default(),
            transcript: Transcript::new(name),
        });
        agent.hear(&stream)?;
        let keeps = Arc::clone(&agent);
        std::thread::Builder::new()
            .name(format!("console-{name}"))
            .spawn(move || keeps.keep_console(console))?;
        Ok(agent)
    }

    /// Goes on over another channel, at whose end is the guest of the channel that was
    /// [closed](Self::close).
    pub(crate) fn reconnect(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            (state.channel, state.ended) = (state.channel + 1, false);
        }
        *self.stream.lock() = stream.try_clone()?;
        self.hear(&stream)
    }

    /// Starts a thread that listens to a channel.
    fn hear(self: &Arc<Self>, stream: &UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        let (agent, reader) = (Arc::clone(self), BufReader::new(stream.try_clone()?));
        let channel = self.state.lock().channel;
        std::thread::Builder::new()
            .name(format!("agent-{}", self.name))
            .spawn(move || agent.listen(reader, channel))
            .map(drop)
    }

    /// The clock that limits of waits are counted in.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// How often the guest has come up.
    pub(crate) fn boots(&self) -> u32 {
        self.state.lock().boots
    }

    /// Waits until the guest has come up `boots` times in all.
    pub(crate) fn wait_for_boot(&self, boots: u32, limit: Duration) -> Result<(), GuestError> {
        self.wait("boot", limit, |state| (state.boots >= boots).then_some(Ok(())))
    }

    /// The end of the console's text.
    pub(crate) fn console(&self) -> String {
        let bytes = self.console.lock();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).replace('\r', "")
    }

    /// Starts a command in the guest.
    pub(crate) fn start(self: &Arc<Self>, command: &str) -> Result<Job, GuestError> {
        let (boot, id) = {
            let mut state = self.state.lock();
            state.last_id += 1;
            let boot = state.boot.clone().ok_or_else(|| self.late("boot", Duration::ZERO))?;
            (boot, state.last_id)
        };
        self.transcript.note(&format!("command {id}: {command}"));
        self.send(&format!("{boot} run {id} {}\n", escaped(command)))?;
        Ok(Job { agent: Arc::clone(self), boot, id, command: command.to_owned() })
    }

    /// Closes the channel: commands that still run in the guest count as cut off.
    pub(crate) fn close(&self) {
        // An error means that it is closed already.
        let _ = self.stream.lock().shutdown(std::net::Shutdown::Both);
    }

    fn send(&self, line: &str) -> Result<(), GuestError> {
        self.stream.lock().write_all(line.as_bytes()).map_err(|source| GuestError::Channel {
            what: "cannot reach the guest's agent",
            source,
        })
    }

    fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&mut State) -> Option<Result<T, GuestError>>,
    ) -> Result<T, GuestError> {
        let mut deadline = WaitLimit::after(limit, self.clock);
        let mut state = self.state.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return found;
            }
            if interrupt::asked() {
                return Err(GuestError::Interrupted);
            }
            if state.ended {
                drop(state);
                return Err(GuestError::Ended { name: self.name.clone(), console: self.console() });
            }
            if deadline.is_over() {
                drop(state);
                return Err(self.late(what, limit));
            }
            self.changed.wait_for(&mut state, SLICE);
        }
    }

    fn late(&self, what: &str, limit: Duration) -> GuestError {
        GuestError::Late {
            name: self.name.clone(),
            what: what.into(),
            limit,
            console: self.console(),
        }
    }

    fn listen(&self, mut reader: impl BufRead, channel: u32) {
        let mut line = Vec::new();
        // A reset may cut a line in the middle, and the kernel also writes to a channel that is a
        // console. Text that is not a complete line of ours is only kept for messages.
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if let Some(said) = std::str::from_utf8(&line).ok().and_then(AgentMessage::parse) {
                self.transcript.note(&said.to_string());
                self.state.lock().hear(said, channel);
                self.changed.notify_all();
            } else {
                self.keep(&line);
            }
            line.clear();
        }
        self.state.lock().end(channel);
        self.changed.notify_all();
    }

    fn keep_console(&self, mut from: impl io::Read) {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            self.keep(piece.get(..n).unwrap_or_default());
        }
    }

    fn keep(&self, text: &[u8]) {
        const KEPT: usize = 64 * 1024;
        self.transcript.console(text);
        let mut kept = self.console.lock();
        kept.extend_from_slice(text);
        if kept.len() > 2 * KEPT {
            let surplus = kept.len() - KEPT;
            kept.drain(..surplus);
        }
    }
}

impl State {
    fn hear(&mut self, said: AgentMessage<'_>, channel: u32) {
        match said {
            AgentMessage::Hello(boot) => {
                self.boot = Some(boot.to_owned());
                self.boots += 1;
                self.done.clear();
            }
            AgentMessage::Done { boot, id, output } if self.boot.as_deref() == Some(boot) => {
                self.done.insert(id, output);
            }
            AgentMessage::Done { .. } => {}
            AgentMessage::Gone => self.end(channel),
        }
    }

    /// A channel has ended.
    fn end(&mut self, channel: u32) {
        self.ended |= channel == self.channel;
    }
}

impl Job {
    /// Waits for the command to end. A command that has not ended in time is killed, with its
    /// children.
    ///
    /// # Errors
    /// When it does not end in time, the guest restarts or ends, or the user interrupts.
    pub fn wait(self, limit: Duration) -> Result<Output, GuestError> {
        let result = self.agent.wait(&format!("`{}`", self.command), limit, |state| {
            match state.done.remove(&self.id) {
                Some(output) => Some(Ok(output)),
                None if state.boot.as_deref() == Some(&self.boot) => None,
                None => Some(Err(GuestError::Restarted {
                    name: self.agent.name.clone(),
                    command: self.command.clone(),
                })),
            }
        });
        if matches!(result, Err(GuestError::Late { .. })) {
            let _ = self.kill();
        }
        result
    }

    /// Kills the command and its children, and waits for its end.
    ///
    /// # Errors
    /// As [`Job::wait`].
    pub fn stop(self, limit: Duration) -> Result<Output, GuestError> {
        self.kill()?;
        self.wait(limit)
    }

    fn kill(&self) -> Result<(), GuestError> {
        self.agent.send(&format!("{} stop {}\n", self.boot, self.id))
    }
}

#[cfg(test)]
mod tests;
