//! Runs the guest's command, and passes signals on to it.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, ExitStatus};

use hostlink::inside::end_with_us;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// Runs a command from the calling thread, and waits for it. The terminal sends its signals to both
/// processes; `SIGTERM` and `SIGHUP` of others are passed on.
pub fn run(command: &[OsString]) -> io::Result<ExitStatus> {
    let (program, args) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let mut command = Command::new(program);
    // The command must not survive this process, without which its network is dead.
    end_with_us(command.args(args));
    let mut child = command.spawn()?;
    let pid = pid_of(&child);
    let forwarder = std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            // The terminal has also sent the first two to the program.
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            if let Some(pid) = pid {
                let _ = kill_process(pid, signal);
            }
        }
    })?;
    let status = child.wait();
    handle.close();
    let _ = forwarder.join();
    status
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}
