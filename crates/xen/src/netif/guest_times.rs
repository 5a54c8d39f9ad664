//! Where a guest's time goes for the frames that it receives, as the guest tells its backend through
//! the store. A private extension of netif.h.
//!
//! A backend that requests it writes a number under [`KEY`] in its own directory; zero, or no key,
//! ends that. A guest that can tell has a value under the same key in its directory: the last number
//! of the backend's, and what it has counted so far. A stock frontend ignores the key, and the
//! backend does not wait for one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use hypervisor::Nodes;
use serde::{Deserialize, Serialize};

use crate::netif::service::Service;
use crate::xenbus::DeviceId;

/// The key, on both sides.
pub const KEY: &str = "ringmain/profile";

/// How often the store is read for a guest's answer.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What a guest has counted while its backend requested it. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTimes {
    /// Frames that it received.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Bursts in which they came.
    #[serde(rename = "bursts")]
    pub turns: u64,
    /// Taking frames from its rings.
    #[serde(rename = "ring_ns")]
    pub ring: u64,
    /// Handing them to its kernel, with all that the kernel does at once.
    #[serde(rename = "kernel_ns")]
    pub kernel: u64,
    /// Posting buffers, signalling the backend, asking to be signalled.
    #[serde(rename = "signal_ns")]
    pub signal: u64,
    /// Everything for what it sends.
    #[serde(rename = "send_ns")]
    pub send: u64,
}

impl GuestTimes {
    /// What was counted since `then`.
    pub fn since(&self, then: &GuestTimes) -> GuestTimes {
        let (now, then) = (self.words(), then.words());
        GuestTimes::from_words(std::array::from_fn(|i| now[i].saturating_sub(then[i])))
    }

    fn from_words(words: [u64; 7]) -> Self {
        let [frames, bytes, turns, ring, kernel, signal, send] = words;
        GuestTimes { frames, bytes, turns, ring, kernel, signal, send }
    }

    fn words(&self) -> [u64; 7] {
        [self.frames, self.bytes, self.turns, self.ring, self.kernel, self.signal, self.send]
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

impl Service {
    /// Requests from all guests what they have counted up to now, and to go on counting; with number
    /// zero, to stop. Returns what guests answer within `timeout`; a vif that is removed meanwhile
    /// does not answer.
    pub fn request_times(&self, number: u64, timeout: Duration) -> BTreeMap<DeviceId, GuestTimes> {
        let until = Instant::now() + timeout;
        let nodes = self.nodes();
        let mut requested: BTreeMap<DeviceId, String> = BTreeMap::new();
        for vif in self.vifs() {
            let back = self.backend_path(vif.id);
            let Ok(Some(front)) = nodes.find(&format!("{back}/frontend")) else { continue };
            if answer(nodes, &front).is_some()
                && nodes.put(&format!("{back}/{KEY}"), number).is_ok()
            {
                requested.insert(vif.id, front);
            }
        }
        let mut answers = BTreeMap::new();
        while number > 0 && !requested.is_empty() && Instant::now() < until {
            requested.retain(|id, front| match answer(nodes, front) {
                Some((answered, times)) if answered == number => {
                    answers.insert(*id, times).is_some()
                }
                _ => true,
            });
            std::thread::sleep(POLL_INTERVAL);
        }
        answers
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
            turns: 3,
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
