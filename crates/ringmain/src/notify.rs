//! Notification of systemd about the daemon's state, as in sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use control::daemon::Probe;
use tracing::{error, warn};

/// The variable with the address of the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The variable with the watchdog interval of the manager, in microseconds.
const INTERVAL: &str = "WATCHDOG_USEC";
/// The variable with the process that the manager's watchdog expects.
const PROCESS: &str = "WATCHDOG_PID";

/// The service manager, if one has started this process. The socket is connected from the start,
/// because the manager's socket may be out of reach in a sandbox.
pub struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// Connects to the service manager that the environment names.
    pub fn connect() -> Notifier {
        let connected = std::env::var_os(SOCKET).map(|socket| connect(&socket));
        Notifier(connected.and_then(|socket| socket.inspect_err(complain).ok()))
    }

    /// Sends a state such as `READY=1`.
    pub fn notify(&self, state: &str) {
        let Some(socket) = &self.0 else { return };
        if let Err(error) = socket.send(state.as_bytes()) {
            complain(&error);
        }
    }

    /// Starts a thread that keeps telling the manager that the daemon's workers make progress, if
    /// the manager has asked for it.
    ///
    /// # Errors
    /// When a thread or descriptor cannot be created.
    pub fn watch(&self, probe: Probe) -> io::Result<Option<Watchdog>> {
        let Some(interval) = interval(|name| std::env::var(name).ok()) else { return Ok(None) };
        let Some(socket) = &self.0 else { return Ok(None) };
        Watchdog::start(Notifier(Some(socket.try_clone()?)), interval, probe).map(Some)
    }
}

fn connect(socket: &OsStr) -> io::Result<UnixDatagram> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

fn complain(error: &io::Error) {
    warn!(reason = %error, "cannot notify the service manager");
}

/// The watchdog interval for this process, from variables of the environment.
fn interval(variable: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let other = |process: String| process.parse() != Ok(std::process::id());
    if variable(PROCESS).is_some_and(other) {
        return None;
    }
    let microseconds: u64 = variable(INTERVAL)?.parse().ok()?;
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

/// The thread that tells the manager of progress. Dropping this value ends the thread.
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread. Half of the interval is for waiting, and a quarter for workers to answer.
    fn start(manager: Notifier, interval: Duration, probe: Probe) -> io::Result<Watchdog> {
        let (stop, stopped) = mpsc::channel();
        let thread = Builder::new().name("rm-notify".into()).spawn(move || {
            sandbox::enter_thread(sandbox::Role::Task);
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval / 2) {
                if probe.workers_answer(interval / 4) {
                    manager.notify("WATCHDOG=1");
                } else {
                    error!(
                        reason = "a worker makes no progress",
                        "no watchdog message to the service manager"
                    );
                }
            }
        })?;
        Ok(Watchdog { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_as_one_datagram() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier(Some(connect(path.as_os_str()).unwrap()));
        notifier.notify("READY=1");
        let mut message = [0; 64];
        let length = manager.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
        assert!(connect(OsStr::new("/nowhere/notify")).is_err());
    }

    #[test]
    fn the_interval_is_for_this_process_only() {
        let own = std::process::id();
        let variables = |process: Option<u32>, time: Option<&'static str>| {
            interval(move |name| match name {
                PROCESS => process.map(|process| process.to_string()),
                _ => time.map(str::to_owned),
            })
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!(variables(Some(own), Some("1000000")), second);
        assert_eq!(variables(None, Some("1000000")), second);
        assert_eq!(variables(Some(own + 1), Some("1000000")), None);
        assert_eq!(variables(None, None), None);
        assert_eq!(variables(None, Some("0")), None);
    }
}
