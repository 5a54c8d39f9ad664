//! Pairs of guests, and streams from one of each to the other: what most experiments measure.

use control::api::{Profile, QueueFlows};

use super::daemon::{Look, Seen, at_rest};
use super::guests::{Bed, Member, Wants, Wish};
use super::streams::{Amount, Flow, carry};
use crate::experiment::{LabError, Outcome, Setup};

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'a> {
    /// How many pairs, 100 at most.
    pub count: u8,
    /// Queues of each guest.
    pub queues: u16,
    /// Streams of each pair.
    pub streams: u16,
    /// What the daemon is to be like.
    pub wants: Wants<'a>,
    /// Whether flows are counted queue by queue: then the daemon takes time stamps, too.
    pub profiled: bool,
}

/// What was measured, for those who want to know more than the outcome says.
#[derive(Debug)]
pub struct Paired {
    /// Throughput of all (`throughput`, Gb/s of frames that receivers got), CPU of the daemon and
    /// of everything (`daemon`, `busy`, % of one), `frames_per_interrupt`, and the checks.
    pub outcome: Outcome,
    /// What daemon and machine did.
    pub seen: Seen,
    /// What the daemon said of flows, if it was asked.
    pub profile: Option<Profile>,
}

impl Paired {
    /// How many streams each queue of a port carried; `of` picks the direction.
    pub fn streams(&self, port: &str, of: fn(&QueueFlows) -> usize) -> Vec<f64> {
        let ports = self
            .profile
            .iter()
            .flat_map(|profile| &profile.ports)
            .filter(|found| found.name == port);
        ports.flat_map(|port| &port.flows).map(|queue| of(queue) as f64).collect()
    }
}

impl Pairs<'_> {
    /// Starts daemon and guests, has them send, and looks.
    ///
    /// # Errors
    /// When something does not start, or a tool fails.
    pub fn measure(&self, setup: &Setup<'_>) -> Result<Paired, LabError> {
        let bed: Bed = Bed::start::<LabError>(&setup.binary, self.wants, self.guests())?;
        let own = bed.ids();
        let ends: Vec<(&Member, &Member)> =
            bed.members().chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect();
        let flows: Vec<Flow<'_>> =
            ends.iter().map(|(from, to)| Flow::between(from, to, self.streams)).collect();
        let mut profile = None;
        let carried = carry(&flows, Amount::of(setup), |ids| {
            if self.profiled {
                profile = Some(bed.daemon().profile()?);
            }
            Ok::<_, LabError>(Look::now(bed.daemon(), &[&own[..], ids].concat())?)
        })?;
        let seen = carried.seen();
        let mut outcome = Outcome::default();
        let receivers: Vec<String> = ends.iter().map(|(_, to)| to.port()).collect();
        seen.note(&mut outcome, receivers.iter().map(String::as_str), carried.time);
        carried.check(&mut outcome);
        at_rest(bed.daemon(), &mut outcome)?;
        Ok(Paired { outcome, seen, profile })
    }

    /// Senders and receivers, in turn. A guest has as many threads as it has queues, but no more
    /// than there are CPUs.
    fn guests(&self) -> Vec<Wish> {
        let vcpus = self
            .queues
            .min(std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u16));
        let guest = |n: u8, role: &str, host: u8| Wish {
            name: format!("{role}-{n}"),
            address: format!("10.77.0.{host}"),
            queues: self.queues,
            vcpus,
            ..Wish::default()
        };
        let pair = |n: u8| [guest(n, "sender", 2 * n + 1), guest(n, "receiver", 2 * n + 2)];
        (0..self.count.min(100)).flat_map(pair).collect()
    }
}

/// The name of the port of a pair's sender, and of its receiver.
pub fn ports(pair: u8) -> [String; 2] {
    ["sender", "receiver"].map(|role| format!("guests/{role}-{pair}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_guests_have_a_name_or_an_address_in_common() {
        let pairs =
            Pairs { count: 200, queues: 4, streams: 1, wants: Wants::default(), profiled: false };
        let guests = pairs.guests();
        assert_eq!(guests.len(), 200);
        let names: BTreeSet<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        let addresses: BTreeSet<&str> = guests.iter().map(|guest| guest.address.as_str()).collect();
        assert_eq!((names.len(), addresses.len()), (200, 200));
        assert_eq!(ports(0)[1], format!("guests/{}", guests[1].name));
    }
}
