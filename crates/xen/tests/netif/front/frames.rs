//! Frames between stations, and how stations become known.

use super::wait;

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub frame: Vec<u8>,
    pub blank: bool,
    pub validated: bool,
    pub gso: Option<(u8, u16)>,
}

/// The address of station `n`.
pub fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// A frame from station to station with so many bytes behind the header, which say what they are.
pub fn frame(from: u8, to: u8, len: usize, what: u32) -> Vec<u8> {
    let body = (0..len as u32).map(|i| (i.wrapping_mul(31).wrapping_add(what) >> 2) as u8);
    [
        mac(to).to_vec(),
        mac(from).to_vec(),
        vec![0x88, 0xb5],
        what.to_le_bytes().to_vec(),
        body.collect(),
    ]
    .concat()
}

/// The number that a frame carries.
pub fn what(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[14..18].try_into().unwrap())
}

/// The number of greetings: frames that are sent to make stations known to the switch.
const GREETING: u32 = 0xfeed_beef;

pub fn is_greeting(frame: &[u8]) -> bool {
    frame.len() >= 18 && frame[12..18] == [0x88, 0xb5, 0xef, 0xbe, 0xed, 0xfe]
}

/// A frontend of either kind that sends and receives.
pub trait Peer {
    /// Sends a frame on queue 0.
    fn greet(&self, frame: &[u8]);
    /// All frames that came, greetings too.
    fn heard(&self) -> Vec<Received>;
}

/// Makes both stations known to the switch.
#[track_caller]
pub fn introduce((a, x): (&impl Peer, u8), (b, y): (&impl Peer, u8)) {
    greet((a, x), (b, y));
    greet((b, y), (a, x));
}

/// The first sends the second a frame, so that frames for the first are not flooded any more.
#[track_caller]
pub fn greet((from, x): (&impl Peer, u8), (to, y): (&impl Peer, u8)) {
    from.greet(&frame(x, y, 40, GREETING));
    wait(|| to.heard().iter().any(|got| is_greeting(&got.frame) && got.frame[6..12] == mac(x)));
}
