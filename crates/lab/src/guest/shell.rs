//! Systems that run shell commands.

use super::{GuestError, Job, Output};
use std::time::Duration;

/// A system that commands can be run in: a guest under QEMU, a Xen host's dom0, a domain on it.
pub trait Shell {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Starts a shell command in it. Several may run at the same time.
    ///
    /// # Errors
    /// When it is not up, or its channel broke.
    fn spawn(&self, command: &str) -> Result<Job, GuestError>;

    /// Runs a shell command in it and waits for its end.
    ///
    /// # Errors
    /// See [`Job::wait`]. That the command itself fails is no error.
    fn run(&self, command: &str, limit: Duration) -> Result<Output, GuestError> {
        self.spawn(command)?.wait(limit)
    }

    /// Runs a shell command that must succeed, and gives what it printed.
    ///
    /// # Errors
    /// See [`Job::wait`]; and when the command's exit code is not 0.
    fn must(&self, command: &str, limit: Duration) -> Result<String, GuestError> {
        self.run(command, limit)?.succeeded(self.name(), command)
    }
}

impl Output {
    /// The output of a command that had to succeed.
    ///
    /// # Errors
    /// When its exit code is not 0.
    pub fn succeeded(self, guest: &str, command: &str) -> Result<String, GuestError> {
        let Output { code, text } = self;
        if code == 0 {
            return Ok(text);
        }
        Err(GuestError::Failed { name: guest.to_owned(), command: command.into(), code, text })
    }
}
