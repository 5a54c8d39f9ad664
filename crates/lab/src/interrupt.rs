//! Whether the user asked to stop: long experiments look here while they wait, so that everything
//! is cleaned up in order.

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Begins to note SIGINT, SIGTERM and SIGHUP. The second signal ends the process at once.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn listen() -> io::Result<()> {
    let asked = Arc::clone(ASKED.get_or_init(Arc::default));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        // The order matters: the second signal must find the flag set.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&asked))?;
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
    }
    Ok(())
}

/// Becomes true when one of the signals comes, for those who watch a flag of their own.
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(ASKED.get_or_init(Arc::default))
}

/// Whether one of the signals came since [`listen`].
pub fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// Sleeps for so long. False at once when one of the signals comes, or has come.
pub fn sleep(time: Duration) -> bool {
    let until = Instant::now() + time;
    while let Some(left) =
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    {
        if asked() {
            return false;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    true
}
