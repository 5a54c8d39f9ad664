//! Where a guest's time goes for the frames that it receives, as it tells its backend through the
//! store.
//!
//! A backend that wants to know writes a number under [`KEY`] in its own directory; zero, or
//! nothing: it does not. A guest that can tell has something under the same key in its directory,
//! and writes the last number there with what it has counted so far. A stock frontend does nothing
//! of that, and nobody waits for it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use hypervisor::Nodes;

use crate::netif::service::Service;
use crate::xenbus::DeviceId;

/// The key, on both sides.
pub const KEY: &str = "ringmain/profile";

/// How often it is looked whether a guest has answered.
const GLANCE: Duration = Duration::from_millis(1);

/// What a guest has counted while it was asked to. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Frames that it received.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Turns in which it received any.
    pub turns: u64,
    /// Taking frames from its rings.
    pub ring: u64,
    /// Handing them to its kernel, with all that the kernel does at once.
    pub kernel: u64,
    /// Posting buffers, signalling the backend, asking to be signalled.
    pub signal: u64,
    /// Everything for what it sends.
    pub send: u64,
}

impl Times {
    fn words(&self) -> [u64; 7] {
        [self.frames, self.bytes, self.turns, self.ring, self.kernel, self.signal, self.send]
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.words().iter().map(u64::to_string).collect();
        f.write_str(&words.join(" "))
    }
}

/// A text that says no times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTimes;

impl FromStr for Times {
    type Err = NoTimes;

    fn from_str(text: &str) -> Result<Self, NoTimes> {
        let words: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        let words: [u64; 7] = words.ok().and_then(|words| words.try_into().ok()).ok_or(NoTimes)?;
        let [frames, bytes, turns, ring, kernel, signal, send] = words;
        Ok(Times { frames, bytes, turns, ring, kernel, signal, send })
    }
}

/// What a guest said last: to which number, and what.
fn answer(nodes: &dyn Nodes, front: &str) -> Option<(u64, Times)> {
    let text = nodes.find(&format!("{front}/{KEY}")).ok()??;
    let (number, times) = text.split_once(' ')?;
    Some((number.parse().ok()?, times.parse().ok()?))
}

impl Service {
    /// Asks all guests for what they have counted up to now, and to go on counting; or with zero,
    /// to stop. What those say who answer within `policy`. A vif that goes meanwhile says
    /// nothing.
    pub fn ask_guests(&self, number: u64, policy: Duration) -> BTreeMap<DeviceId, Times> {
        let until = Instant::now() + policy;
        let nodes = self.nodes();
        let mut asked: BTreeMap<DeviceId, String> = BTreeMap::new();
        for vif in self.vifs() {
            let back = self.backend_path(vif.id);
            let Ok(Some(front)) = nodes.find(&format!("{back}/frontend")) else { continue };
            if answer(nodes, &front).is_some()
                && nodes.put(&format!("{back}/{KEY}"), number).is_ok()
            {
                asked.insert(vif.id, front);
            }
        }
        let mut said = BTreeMap::new();
        while number > 0 && !asked.is_empty() && Instant::now() < until {
            asked.retain(|id, front| match answer(nodes, front) {
                Some((answered, times)) if answered == number => said.insert(*id, times).is_some(),
                _ => true,
            });
            std::thread::sleep(GLANCE);
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_says_is_read_or_refused() {
        let times =
            Times { frames: 1, bytes: 2, turns: 3, ring: 4, kernel: 5, signal: 6, send: u64::MAX };
        assert_eq!(times.to_string().parse(), Ok(times));
        for text in ["", "1", "1 2 3 4 5 6", "1 2 3 4 5 6 7 8", "1 2 3 4 5 6 -7", "1 2 3 4 5 6 x"] {
            assert_eq!(text.parse::<Times>(), Err(NoTimes), "{text:?}");
        }
    }
}
