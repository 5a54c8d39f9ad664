//! Two stock guests that send to each other, with pauses: dom0 looks at the daemon's counters again
//! and again, on the same two emulated processors.

use super::host::{Scene, port_of};
use super::traffic::{LIMIT, Stream, address, eventually, finish, ping, stream};
use control::api::Stats;
use lab::guest::Shell;
use lab::xen::Domain;
use std::time::Duration;

/// How long streams pause after each piece of noise.
const PAUSE: Duration = Duration::from_millis(300);

/// The guests, with a vif each, and a stream each way.
pub struct Exchange<'a> {
    pub scene: &'a Scene,
    pub guests: [&'a Domain; 2],
    streams: [Stream; 2],
}

/// Starts to send noise, with pauses, from a guest to the address of another one's port.
pub fn send_noise(from: &Domain, to: &Domain, port: usize) -> Stream {
    from.must("head -c 256k /dev/urandom >/tmp/noise", LIMIT).unwrap();
    let (address, pause) = (address(port), PAUSE.as_micros());
    // System calls are dear in these guests: each piece goes to the connection in one, and the sum
    // of all is made afterwards.
    let send = format!(
        "nc {address} 5000 -e sh -c 'pieces=0
        until [ -e /tmp/stop ]; do
        cat /tmp/noise || exit; pieces=$((pieces + 1)); usleep {pause}
        done
        echo $pieces >/tmp/pieces' || exit 1
        for piece in $(seq $(cat /tmp/pieces)); do cat /tmp/noise; done | md5sum"
    );
    stream(from, to, &send)
}

impl<'a> Exchange<'a> {
    pub fn start(scene: &'a Scene) -> Self {
        let guests = scene.plugged(["", ""]);
        let [a, b] = guests;
        ping(a, &address(1));
        Exchange { scene, guests, streams: [send_noise(a, b, 1), send_noise(b, a, 0)] }
    }

    /// Whether each has received more than so many bytes between two looks at the counters.
    pub fn went_on(&self, before: &Stats, now: &Stats, bytes: u64) -> bool {
        self.guests.iter().all(|guest| {
            let received = |stats| port_of(stats, guest, 0).map_or(0, |port| port.total.rx_bytes);
            received(now) > received(before) + bytes
        })
    }

    /// Waits until each guest has received more than so many bytes from now on.
    pub fn go_on(&self, bytes: u64) {
        let before = self.scene.stats();
        eventually("both streams", || self.went_on(&before, &self.scene.stats(), bytes));
    }

    /// Ends the streams. Nothing was lost or changed on the way.
    pub fn finish(self) {
        finish(self.guests.map(|guest| guest as &dyn Shell), self.streams);
    }
}
