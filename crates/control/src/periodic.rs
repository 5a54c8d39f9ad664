//! Threads that repeat a task.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use sandbox::Role;

/// A thread that repeats a task until this value is dropped.
pub struct PeriodicTask {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PeriodicTask {
    /// Starts a thread of this name, and of this kind if it needs less than control threads, that
    /// calls `work` after `first`, and then again and again, each time after the interval that the
    /// last call returned.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        name: &str,
        role: Option<Role>,
        first: Duration,
        work: impl Fn() -> Duration + Send + 'static,
    ) -> io::Result<PeriodicTask> {
        let (stop, stopped) = mpsc::channel();
        let thread = Builder::new().name(name.into()).spawn(move || {
            role.into_iter().for_each(sandbox::enter_thread);
            let mut interval = first;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                interval = work();
            }
        })?;
        Ok(PeriodicTask { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for PeriodicTask {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
