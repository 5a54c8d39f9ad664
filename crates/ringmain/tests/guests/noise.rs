//! Streams of noise both ways between two guests, until a test ends them.

use super::traffic::{LIMIT, Stream, address, finish, stream};
use lab::guest::Shell;

/// The streams, and the guests that send them.
pub struct Noise<'a> {
    guests: [&'a dyn Shell; 2],
    streams: [Stream; 2],
}

impl<'a> Noise<'a> {
    /// Starts to send between the guests of ports 0 and 1.
    pub fn start(guests: [&'a dyn Shell; 2]) -> Self {
        let [a, b] = guests;
        Noise { guests, streams: [send(a, b, 1), send(b, a, 0)] }
    }

    /// Ends the streams. All that was sent has to arrive.
    pub fn finish(self) {
        finish(self.guests, self.streams);
    }
}

/// Starts to send to the address of a port.
fn send(from: &dyn Shell, to: &dyn Shell, port: usize) -> Stream {
    from.must("head -c 1m /dev/urandom >/tmp/noise", LIMIT).unwrap();
    let address = address(port);
    let send = format!(
        "rm -f /tmp/copy; mkfifo /tmp/copy; md5sum </tmp/copy >/tmp/sum &
        until [ -e /tmp/stop ]; do cat /tmp/noise; done | tee /tmp/copy | nc {address} 5000 || exit 1
        wait; cat /tmp/sum"
    );
    stream(from, to, &send)
}
