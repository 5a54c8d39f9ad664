//! Numbered datagrams that the guest sends to the host at a steady pace, and the gaps between their
//! arrivals.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::hosts::HostsError;
use super::network::HOST;
use crate::guest::{Guest, GuestError, Namespace, Shell};

/// Datagrams a second.
const RATE: u32 = 200;
/// Bytes of a datagram.
const BYTES: usize = 1000;
/// The part of iperf's datagrams that has its own numbers, in bytes, in the version where that part
/// is longest. The rest is the digits over and over.
const HEADER: usize = 160;
const PORT: u16 = 5001;

/// The arrivals in a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The longest time between two datagrams that followed each other.
    pub longest_gap: Duration,
    /// Datagrams that arrived.
    pub arrived: u64,
    /// Datagrams that are not what was sent, or came again.
    pub wrong: u64,
    /// Numbers that were left out.
    pub missing: u64,
}

impl Window {
    /// Adds what arrived in the window right after this one.
    pub fn add(&mut self, next: Window) {
        self.longest_gap = self.longest_gap.max(next.longest_gap);
        self.arrived += next.arrived;
        self.wrong += next.wrong;
        self.missing += next.missing;
    }
}

#[derive(Debug, Default)]
struct Arrivals {
    window: Window,
    last: Option<(Instant, i32)>,
}

/// The receiving end.
#[derive(Debug)]
pub struct Paced {
    arrivals: Arc<Mutex<Arrivals>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Paced {
    /// Starts to receive in this network, and to send from the guest for as long as it lives.
    ///
    /// # Errors
    /// When there is no socket, or the guest refuses.
    pub fn start(network: &Namespace, guest: &Guest) -> Result<Paced, HostsError> {
        let failed = |source| GuestError::Channel { what: "cannot receive datagrams", source };
        let socket = network.open(|| UdpSocket::bind((HOST, PORT))).map_err(failed)?;
        socket.set_read_timeout(Some(Duration::from_millis(100))).map_err(failed)?;
        let (arrivals, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (counts, ends) = (Arc::clone(&arrivals), Arc::clone(&stop));
        let thread = std::thread::spawn(move || receive(&socket, &counts, &ends));
        let bits = u64::from(RATE) * BYTES as u64 * 8;
        guest.spawn(&format!("iperf -u -c {HOST} -p {PORT} -l {BYTES} -b {bits} -t 86400"))?;
        Ok(Paced { arrivals, stop, thread: Some(thread) })
    }

    /// The arrivals since the last call. The time since the last datagram also counts as a gap.
    pub fn take(&self) -> Window {
        let mut arrivals = self.arrivals.lock();
        let mut window = std::mem::take(&mut arrivals.window);
        if let Some((at, _)) = arrivals.last {
            window.longest_gap = window.longest_gap.max(at.elapsed());
        }
        window
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread has no result.
            let _ = thread.join();
        }
    }
}

fn receive(socket: &UdpSocket, arrivals: &Mutex<Arrivals>, stop: &AtomicBool) {
    let mut bytes = [0; 2 * BYTES];
    while !stop.load(Ordering::Relaxed) {
        // A timeout, mostly.
        let Ok(length) = socket.recv(&mut bytes) else { continue };
        let now = Instant::now();
        arrivals.lock().note(&bytes[..length], now);
    }
}

impl Arrivals {
    fn note(&mut self, bytes: &[u8], now: Instant) {
        let window = &mut self.window;
        window.arrived += 1;
        let Some(number) = number(bytes) else {
            window.wrong += 1;
            return;
        };
        if let Some((at, last)) = self.last {
            window.longest_gap = window.longest_gap.max(now - at);
            if number <= last {
                window.wrong += 1;
                return;
            }
            window.missing += u64::from((number - last - 1).unsigned_abs());
        }
        self.last = Some((now, number));
    }
}

/// The number of a datagram that is whole.
fn number(bytes: &[u8]) -> Option<i32> {
    let number = i32::from_be_bytes(*bytes.first_chunk()?);
    let rest = bytes.get(HEADER..)?;
    let digit = |at: usize| b'0' + u8::try_from(at % 10).unwrap_or(0);
    let first = usize::from(rest.first()?.checked_sub(b'0')?);
    let whole = (first..).zip(rest).all(|(at, byte)| *byte == digit(at));
    (bytes.len() == BYTES && number >= 0 && whole).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(number: i32) -> Vec<u8> {
        datagram_behind(HEADER, number)
    }

    /// A datagram of an iperf whose own numbers take `header` bytes.
    fn datagram_behind(header: usize, number: i32) -> Vec<u8> {
        let digits = (0..BYTES - header).map(|at| b'0' + (at % 10) as u8);
        let mut bytes: Vec<u8> = std::iter::repeat_n(0, header).chain(digits).collect();
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    #[test]
    fn digits_begin_behind_the_header_of_each_version() {
        for header in [128, HEADER] {
            assert_eq!(number(&datagram_behind(header, 5)), Some(5), "{header}");
        }
    }

    #[test]
    fn gaps_losses_and_damage_are_told_apart() {
        let mut arrivals = Arrivals::default();
        let begin = Instant::now();
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        arrivals.note(&datagram(7), after(0));
        arrivals.note(&datagram(8), after(5));
        arrivals.note(&datagram(11), after(105));
        arrivals.note(&datagram(11), after(110));
        let mut damaged = datagram(12);
        damaged[500] ^= 1;
        arrivals.note(&damaged, after(115));
        let longest_gap = Duration::from_millis(100);
        assert_eq!(arrivals.window, Window { longest_gap, arrived: 5, wrong: 2, missing: 2 });
    }
}
