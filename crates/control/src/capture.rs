//! A capture on its way to a client: records of workers become blocks of pcapng.
//!
//! The connection's own thread reads the workers' rings, and waits only for the client. Records
//! that the client does not take stay in the rings. Further records are lost and counted when the
//! rings are full. The thread looks into the rings at intervals, so that workers need not wake it.
//!
//! A capture ends when the client closes the connection, or its sending side; when the last of its
//! ports is removed; or with the daemon. After the first two ends the rest of the rings and the
//! final statistics are still sent, to a client that takes them in time.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use frame::GsoKind;
use frame::bpf::{Filter, Instruction};
use network::capture::{Capture, CaptureCounts, CaptureSpec, Direction, Record};
use network::fabric::Fabric;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switch::PortId;
use tracing::info;

use crate::api::CaptureRequest;
use crate::pcapng::{self, Packet, Statistics};

/// The interval at which empty rings are polled.
const INTERVAL: Duration = Duration::from_millis(10);
/// The interval at which changed statistics are written.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which a client that takes nothing is checked.
const STALL_INTERVAL: Duration = Duration::from_millis(100);
/// The time that a client has to take the rest at the end.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of each frame that are captured by default: all of the longest frame.
const WHOLE_FRAME: u32 = 262_144;

/// A capture that has been started for a client.
pub struct CaptureSession {
    capture: Capture,
    interfaces: Vec<String>,
    snaplen: u32,
    /// The start of the capture, in nanoseconds since the Unix epoch.
    from: u64,
    /// The counts of the last statistics.
    said: Vec<CaptureCounts>,
    /// Blocks that are to be sent.
    out: Vec<u8>,
}

impl CaptureSession {
    /// Starts a capture. `port` finds ports by name.
    ///
    /// # Errors
    /// A line for people: a port that does not exist, a filter that is refused, too many captures.
    pub fn start(
        fabric: &Arc<Fabric>,
        request: CaptureRequest,
        port: impl Fn(&str) -> Result<PortId, String>,
    ) -> Result<CaptureSession, String> {
        let CaptureRequest { ports: interfaces, snaplen, filter } = request;
        let ports: Vec<PortId> =
            interfaces.iter().map(|name| port(name)).collect::<Result<_, _>>()?;
        if let Some(twice) = (1..ports.len()).find(|&at| ports[..at].contains(&ports[at])) {
            return Err(format!("port {:?} is named twice", interfaces[twice]));
        }
        let filter = filter.map(|program| check(&program)).transpose()?;
        let snaplen = snaplen.unwrap_or(WHOLE_FRAME).clamp(1, WHOLE_FRAME);
        let spec = CaptureSpec { ports, snaplen, filter };
        let capture = fabric.capture(&spec).map_err(|error| error.to_string())?;
        info!(ports = %interfaces.join(","), "capture started");
        let said = vec![CaptureCounts::default(); interfaces.len()];
        Ok(CaptureSession { capture, interfaces, snaplen, from: now(), said, out: Vec::new() })
    }

    /// Sends the capture until it ends.
    ///
    /// # Errors
    /// When the client is gone, or has not taken the rest in time.
    pub fn serve(mut self, stream: &mut UnixStream) -> io::Result<()> {
        let served = self.send_all(stream);
        let (mut accepted, mut lost) = (0, 0);
        for counts in self.capture.counts() {
            (accepted, lost) = (accepted + counts.accepted, lost + counts.lost);
        }
        info!(ports = %self.interfaces.join(","), frames = accepted, lost, "capture ended");
        served
    }

    fn send_all(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        self.begin();
        let mut due = Instant::now() + STATISTICS_INTERVAL;
        loop {
            let frames = self.read();
            if Instant::now() >= due {
                due += STATISTICS_INTERVAL;
                self.write_statistics(false);
            }
            if !self.send(stream)? {
                break;
            }
            let pause = if frames == 0 { INTERVAL } else { Duration::ZERO };
            if self.capture.has_ended() || has_left(stream, pause)? {
                break;
            }
        }
        self.finish(stream)
    }

    /// Writes the blocks that begin every capture.
    fn begin(&mut self) {
        let application = concat!("ringmain ", env!("CARGO_PKG_VERSION"));
        pcapng::section(&mut self.out, application);
        for name in &self.interfaces {
            pcapng::interface(&mut self.out, name, self.snaplen);
        }
    }

    /// Ends the capture, and sends the rest of it.
    fn finish(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        let by = Instant::now() + END_TIMEOUT;
        self.capture.end();
        while self.read() > 0 {
            crate::line::write(stream, &std::mem::take(&mut self.out), by)?;
        }
        self.write_statistics(true);
        crate::line::write(stream, &std::mem::take(&mut self.out), by)
    }

    /// Turns the records in the rings into blocks. Returns the number of frames.
    fn read(&mut self) -> usize {
        let out = &mut self.out;
        self.capture.read(|record| write_packet(out, &record))
    }

    /// Sends the blocks. False: the capture must end.
    fn send(&mut self, stream: &mut UnixStream) -> io::Result<bool> {
        let mut sent = 0;
        while sent < self.out.len() {
            stream.set_write_timeout(Some(STALL_INTERVAL))?;
            match stream.write(&self.out[sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => sent += bytes,
                Err(error) if is_timeout(&error) => {
                    if self.capture.has_ended() || has_left(stream, Duration::ZERO)? {
                        self.out.drain(..sent);
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        Ok(true)
    }

    fn write_statistics(&mut self, all: bool) {
        let (counts, to) = (self.capture.counts(), now());
        for (interface, (counts, said)) in counts.iter().zip(&self.said).enumerate() {
            if all || counts != said {
                let statistics = Statistics {
                    interface: interface as u32,
                    from: self.from,
                    to,
                    received: counts.seen,
                    accepted: counts.accepted,
                    dropped: counts.lost,
                };
                pcapng::statistics(&mut self.out, &statistics);
            }
        }
        self.said = counts;
    }
}

fn check(program: &[(u16, u8, u8, u32)]) -> Result<Filter, String> {
    let instruction = |&(code, jt, jf, k): &_| Instruction { code, jt, jf, k };
    let program: Vec<Instruction> = program.iter().map(instruction).collect();
    Filter::new(&program).map_err(|error| format!("the filter is refused: {error}"))
}

fn write_packet(out: &mut Vec<u8>, record: &Record<'_>) {
    let packet = Packet {
        interface: record.interface.into(),
        time: record.time,
        outbound: record.direction == Direction::Outbound,
        len: record.len,
        bytes: record.bytes,
        comments: &comments(record),
    };
    pcapng::packet(out, &packet);
}

/// The comments on a frame, if there are any.
fn comments(record: &Record<'_>) -> Vec<String> {
    let mut comments = Vec::new();
    if let Some(reason) = record.dropped {
        comments.push(format!("dropped: {}: {}", reason.name(), reason.meaning()));
    }
    if let Some((kind, size)) = record.segments {
        let kind = match kind {
            GsoKind::TcpV4 | GsoKind::TcpV6 => "TCP",
            GsoKind::UdpV4 | GsoKind::UdpV6 => "UDP",
        };
        comments.push(format!(
            "offload: stands for several {kind} segments of {size} bytes of payload"
        ));
    }
    if record.partial_checksum {
        comments.push("offload: the sender left the checksum to be completed".to_owned());
    }
    if record.cut_into > 1 {
        comments.push(format!("delivered as {} segments", record.cut_into));
    }
    comments
}

/// Waits for `pause`. Returns whether the client has closed its side meanwhile.
fn has_left(stream: &mut UnixStream, pause: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(pause).ok();
    let mut fds = [PollFd::new(&*stream, PollFlags::IN)];
    // A wait that a signal interrupts reports no event.
    let _ = poll(&mut fds, timeout.as_ref());
    if fds.iter().all(|fd| fd.revents().is_empty()) {
        return Ok(false);
    }
    // The read does not block: there are bytes, or the end of the stream.
    match stream.read(&mut [0; 256]) {
        Ok(0) => Ok(true),
        Ok(_) => Ok(false),
        Err(error) if is_timeout(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
