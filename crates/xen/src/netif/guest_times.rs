//! The times that a guest spends on the frames that it receives, which it reports to its backend
//! through the store. A private extension of netif.h.
//!
//! A backend that requests the times writes a number under [`KEY`] in its own directory; zero, or
//! no key, ends the request. A guest that supports this has a value under the same key in its
//! directory: the last number of the backend, and the times so far. A stock frontend ignores the
//! key, and the backend does not wait for one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hypervisor::Nodes;
use serde::{Deserialize, Serialize};

use crate::netif::service::Service;
use crate::xenbus::DeviceId;

/// The key, on both sides.
pub const KEY: &str = "ringmain/profile";

/// The times that a guest has counted while its backend requested it. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTimes {
    /// Frames that the guest received.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Bursts in which they came.
    pub bursts: u64,
    /// Taking frames from the rings.
    #[serde(rename = "ring_ns")]
    pub ring: u64,
    /// Handing frames to the guest's kernel, with all that the kernel does at once.
    #[serde(rename = "kernel_ns")]
    pub kernel: u64,
    /// Posting buffers, signalling the backend, asking to be signalled.
    #[serde(rename = "signal_ns")]
    pub signal: u64,
    /// All work for frames that the guest sends.
    #[serde(rename = "send_ns")]
    pub send: u64,
}

impl GuestTimes {
    /// The times since `then`.
    pub fn since(&self, then: &GuestTimes) -> GuestTimes {
        let (now, then) = (self.words(), then.words());
        GuestTimes::from_words(std::array::from_fn(|i| now[i].saturating_sub(then[i])))
    }

    fn from_words(words: [u64; 7]) -> Self {
        let [frames, bytes, bursts, ring, kernel, signal, send] = words;
        GuestTimes { frames, bytes, bursts, ring, kernel, signal, send }
    }

    fn words(&self) -> [u64; 7] {
        [self.frames, self.bytes, self.bursts, self.ring, self.kernel, self.signal, self.send]
    }
}

impl fmt::Display for GuestTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.words().iter().map(u64::to_string).collect();
        f.write_str(&words.join(" "))
    }
}

/// A text that does not hold the times of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTimes;

impl FromStr for GuestTimes {
    type Err = InvalidTimes;

    fn from_str(text: &str) -> Result<Self, InvalidTimes> {
        let words: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        let words: [u64; 7] =
            words.ok().and_then(|words| words.try_into().ok()).ok_or(InvalidTimes)?;
        Ok(GuestTimes::from_words(words))
    }
}

/// A guest's last answer: the number of the request, and the times.
fn answer(nodes: &dyn Nodes, front: &str) -> Option<(u64, GuestTimes)> {
    let text = nodes.find(&format!("{front}/{KEY}")).ok()??;
    let (number, times) = text.split_once(' ')?;
    Some((number.parse().ok()?, times.parse().ok()?))
}

/// The answers of guests to a request.
#[derive(Debug, Default)]
pub struct Answers {
    /// The times, by vif.
    pub times: BTreeMap<DeviceId, GuestTimes>,
    /// How many guests have not answered yet.
    pub waiting: usize,
}

impl Service {
    /// Requests from all guests their times up to now, and to continue counting; with number zero,
    /// to stop. Does not wait for them: see [`answers`](Self::answers).
    pub fn request_times(&self, number: u64) {
        let nodes = self.nodes();
        for vif in self.vifs() {
            if self.answer_of(vif.id).is_some() {
                // A vif that is removed meanwhile does not answer.
                let _ = nodes.put(&format!("{}/{KEY}", self.backend_path(vif.id)), number);
            }
        }
    }

    /// The answers of guests to the request with this number.
    pub fn answers(&self, number: u64) -> Answers {
        let mut answers = Answers::default();
        for vif in self.vifs() {
            match self.answer_of(vif.id) {
                Some((answered, times)) if answered == number => {
                    answers.times.insert(vif.id, times);
                }
                Some(_) => answers.waiting += 1,
                None => {}
            }
        }
        answers
    }

    /// The last answer of a vif's guest. `None`: the guest reports nothing.
    fn answer_of(&self, id: DeviceId) -> Option<(u64, GuestTimes)> {
        let front = self.nodes().find(&format!("{}/frontend", self.backend_path(id))).ok()??;
        answer(self.nodes(), &front)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_or_refused() {
        let times = GuestTimes {
            frames: 1,
            bytes: 2,
            bursts: 3,
            ring: 4,
            kernel: 5,
            signal: 6,
            send: u64::MAX,
        };
        assert_eq!(times.to_string().parse(), Ok(times));
        for text in ["", "1", "1 2 3 4 5 6", "1 2 3 4 5 6 7 8", "1 2 3 4 5 6 -7", "1 2 3 4 5 6 x"] {
            assert_eq!(text.parse::<GuestTimes>(), Err(InvalidTimes), "{text:?}");
        }
    }
}
