//! `ringmain capture`: frames of ports of the running daemon, as pcapng.

pub mod expression;

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process;

use control::api::CaptureRequest;
use control::client::Client;
use control::pcapng::StreamScan;
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Capture;
use crate::failure::Failure;
use crate::units;

/// Bytes that are read from the daemon at a time.
const PORTION: usize = 256 << 10;

/// Exit code of a process that an interrupt ends.
const INTERRUPTED: i32 = 130;

/// Captures until the daemon, the reader of the output or a signal ends it.
pub fn run(control: &Path, args: Capture) -> Result<(), Failure> {
    let Capture { ports, filter, snaplen, write } = args;
    let path = write.filter(|path| path != "-");
    if path.is_none() && io::stdout().is_terminal() {
        return Err(Failure::Terminal);
    }
    let filter = filter.map(|text| expression::compile(&text)).transpose()?;
    let signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::System { what: "catch signals", error })?;
    let request = CaptureRequest { ports, snaplen, filter };
    let (stream, first) = Client::new(control).capture(request)?;
    let output = match &path {
        Some(path) => Output::File(create(path)?),
        None => Output::Standard(io::stdout()),
    };
    end_at_a_signal(signals, &stream)?;
    let mut scan = StreamScan::default();
    if carry(stream, &first, output, &mut scan)? {
        eprintln!("{}", summary(scan.packets(), scan.dropped()));
    }
    Ok(())
}

fn create(path: &str) -> Result<File, Failure> {
    File::create(path).map_err(|error| Failure::CaptureFile { path: PathBuf::from(path), error })
}

/// The destination of blocks.
enum Output {
    File(File),
    Standard(io::Stdout),
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Output::File(file) => file.write_all(bytes),
            // The reader of a pipe sees each frame at once.
            Output::Standard(out) => out.write_all(bytes).and_then(|()| out.flush()),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Output::File(file) => file.as_fd(),
            Output::Standard(out) => out.as_fd(),
        }
    }
}

/// Copies the capture to the output, to its end. False: the output has no reader any more.
fn carry(
    mut stream: UnixStream,
    first: &[u8],
    mut output: Output,
    scan: &mut StreamScan,
) -> Result<bool, Failure> {
    let mut buffer = vec![0; PORTION];
    let mut portion = first;
    loop {
        scan.feed(portion);
        match output.write(portion) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => return Err(Failure::Output(error)),
        }
        if !wait(&stream, &output) {
            return Ok(false);
        }
        let read = match stream.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(Failure::System { what: "read the capture", error }),
        };
        portion = buffer.get(..read).unwrap_or_default();
    }
}

/// Waits for the next blocks. False: the reader of a pipe went away before any block came.
fn wait(stream: &UnixStream, output: &Output) -> bool {
    let output = output.as_fd();
    let mut fds = [PollFd::new(stream, PollFlags::IN), PollFd::new(&output, PollFlags::empty())];
    // A signal may interrupt the wait. The read then waits.
    let _ = poll(&mut fds, None);
    !fds[1].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Handles signals: the first asks the daemon to end the capture and send the rest, and a second
/// ends this process at once.
fn end_at_a_signal(mut signals: Signals, stream: &UnixStream) -> Result<(), Failure> {
    let failed = |error| Failure::System { what: "start a thread", error };
    let stream = stream.try_clone().map_err(failed)?;
    let work = move || {
        let mut forever = signals.forever();
        forever.next();
        // The call fails if the daemon has closed the connection.
        let _ = stream.shutdown(Shutdown::Write);
        forever.next();
        process::exit(INTERRUPTED);
    };
    std::thread::Builder::new().name("signals".into()).spawn(work).map_err(failed)?;
    Ok(())
}

/// The line at the end of a capture.
fn summary(frames: u64, lost: u64) -> String {
    let captured = units::count(frames, "frame");
    match lost {
        0 => format!("ringmain: {captured} captured, none lost"),
        _ => {
            format!("ringmain: {captured} captured, {lost} lost because they were not read in time")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told() {
        assert_eq!(summary(1, 0), "ringmain: 1 frame captured, none lost");
        assert_eq!(
            summary(7, 3),
            "ringmain: 7 frames captured, 3 lost because they were not read in time"
        );
    }
}
