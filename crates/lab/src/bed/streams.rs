//! TCP streams by iperf: all of them at the same time, for some seconds, each byte counted at both
//! ends.

use std::time::{Duration, Instant};

use super::daemon::{Look, Seen};
use super::guests::Member;
use super::said;
use super::station::{Station, Task};
use crate::experiment::{Outcome, Setup, Size};
use crate::guest::{Deadline, GuestError};
use crate::interrupt;

/// The first port that is listened on; each flow has its own.
const PORT: u16 = 5001;
/// Longest start, and longest end, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a sender sends that does not send as much as goes.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    /// So many bytes at once, then nothing until it is time for the next.
    pub bytes: u32,
    /// Bits a second, over all of them.
    pub rate: u64,
}

/// Streams from one station to another.
#[derive(Clone)]
pub struct Flow<'a> {
    /// Who sends.
    pub from: &'a dyn Station,
    /// Who receives.
    pub to: &'a dyn Station,
    /// The receiver's address.
    pub address: String,
    /// How many streams.
    pub streams: u16,
    /// How each is sent.
    pub batches: Option<Batches>,
}

impl<'a> Flow<'a> {
    /// Streams between guests.
    pub fn between(from: &'a Member, to: &'a Member, streams: u16) -> Flow<'a> {
        Flow { from, to, address: to.wish.address.clone(), streams, batches: None }
    }
}

/// How much is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// As much as goes while it is looked at.
    Time {
        /// Before the first look, and again after the last.
        warm_up: Duration,
        /// Between the two.
        time: Duration,
    },
    /// The same number of bytes over each stream, whoever carries them; the looks are before the
    /// first and after the last.
    Bytes(u64),
}

impl Amount {
    /// What fits an experiment's setup: the tiny form sends a certain amount, so that all designs
    /// carry the same.
    pub fn of(setup: &Setup<'_>) -> Amount {
        match setup.size {
            Size::Tiny => Amount::Bytes(1 << 20),
            _ => Amount::for_time(setup.time, setup.ground.least().0),
        }
    }

    /// For so long, with a warm-up that fits, and is no shorter than `least`.
    fn for_time(time: Duration, least: Duration) -> Amount {
        let fits = (time / 3).clamp(Duration::from_millis(200), Duration::from_millis(1500));
        Amount::Time { warm_up: fits.max(least), time }
    }

    /// As options of iperf.
    fn option(self) -> String {
        match self {
            Amount::Time { warm_up, time } => {
                format!("-t {:.2}", (time + warm_up * 2).as_secs_f64())
            }
            Amount::Bytes(bytes) => format!("-n {bytes}"),
        }
    }

    /// The bytes of each stream, where they are known.
    fn bytes(self) -> Option<u64> {
        match self {
            Amount::Time { .. } => None,
            Amount::Bytes(bytes) => Some(bytes),
        }
    }

    /// How long all of it takes if nothing holds it up.
    fn time(self) -> Duration {
        match self {
            Amount::Time { warm_up, time } => time + warm_up * 2,
            Amount::Bytes(_) => Duration::ZERO,
        }
    }
}

/// What came of some flows.
#[derive(Debug)]
pub struct Carried<T> {
    /// What was seen when measuring began, and when it ended.
    pub looks: [T; 2],
    /// The time between.
    pub time: Duration,
    /// Of each flow.
    pub ends: Vec<Ends>,
}

/// A flow's streams, seen from both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The bytes that were sent, stream by stream, in ascending order.
    pub sent: Vec<u64>,
    /// Those that were received.
    pub received: Vec<u64>,
    /// How many streams there should be.
    pub streams: u16,
    /// How many bytes each should have, if that was said.
    pub bytes: Option<u64>,
}

impl Ends {
    /// Whether all streams were there, and all that was sent, and was to be, has come.
    pub fn complete(&self) -> bool {
        let whole = |bytes: &u64| self.bytes.map_or(*bytes > 0, |asked| *bytes == asked);
        self.sent.len() == usize::from(self.streams)
            && self.sent == self.received
            && self.sent.iter().all(whole)
    }
}

impl Carried<Look> {
    /// What happened between the looks.
    pub fn seen(&self) -> Seen {
        let [before, after] = &self.looks;
        after.since(before)
    }
}

impl<T> Carried<T> {
    /// Notes whether all streams were complete.
    pub fn check(&self, outcome: &mut Outcome) {
        let all: usize = self.ends.iter().map(|ends| usize::from(ends.streams)).sum();
        let bad = self.ends.iter().find(|ends| !ends.complete());
        let seen = match bad {
            None => format!("{all} streams, {} bytes at both ends", self.bytes()),
            Some(Ends { sent, received, streams, .. }) => {
                format!("of {streams} streams {sent:?} bytes were sent, {received:?} received")
            }
        };
        outcome.check("streams complete", bad.is_none(), seen);
    }

    /// All bytes that were received, before and after measuring included.
    pub fn bytes(&self) -> u64 {
        self.ends.iter().flat_map(|ends| &ends.received).sum()
    }
}

/// Has streams run, and looks twice while they do. `look` is given the processes of this machine
/// that the streams run in.
///
/// # Errors
/// When a station or a tool fails, something does not end in time, or the user interrupts.
pub fn carry<T, E: From<GuestError>>(
    flows: &[Flow<'_>],
    amount: Amount,
    mut look: impl FnMut(&[u32]) -> Result<T, E>,
) -> Result<Carried<T>, E> {
    let servers = flows
        .iter()
        .zip(PORT..)
        .map(|(flow, port)| serve(flow, port))
        .collect::<Result<Vec<_>, _>>()?;
    for (flow, port) in flows.iter().zip(PORT..) {
        listening(flow, port)?;
    }
    let clients = || {
        flows
            .iter()
            .zip(PORT..)
            .map(|(flow, port)| send(flow, port, amount))
            .collect::<Result<Vec<_>, _>>()
    };
    let ids = |tasks: &[Task]| tasks.iter().filter_map(Task::id).collect::<Vec<u32>>();
    match amount {
        Amount::Time { warm_up, time } => {
            let clients = clients()?;
            let ids = [ids(&servers), ids(&clients)].concat();
            sleep(warm_up)?;
            let (began, before) = (Instant::now(), look(&ids)?);
            sleep(time)?;
            let (time, after) = (began.elapsed(), look(&ids)?);
            Ok(Carried {
                looks: [before, after],
                time,
                ends: ends(flows, clients, servers, amount)?,
            })
        }
        Amount::Bytes(_) => {
            let (began, before) = (Instant::now(), look(&[])?);
            let ends = ends(flows, clients()?, servers, amount)?;
            Ok(Carried { looks: [before, look(&[])?], time: began.elapsed(), ends })
        }
    }
}

/// Waits for all ends, and reads what they say.
fn ends(
    flows: &[Flow<'_>],
    clients: Vec<Task>,
    servers: Vec<Task>,
    amount: Amount,
) -> Result<Vec<Ends>, GuestError> {
    let sorted = |said: &str| {
        let mut streams = said::streams(said);
        streams.sort_unstable();
        streams
    };
    let tasks = clients.into_iter().zip(servers);
    let end = |(flow, (client, server)): (&Flow<'_>, (Task, Task))| {
        let (sent, received) = (client.wait(amount.time() + PATIENCE)?, server.wait(PATIENCE)?);
        let (streams, bytes) = (flow.streams, amount.bytes());
        Ok(Ends { sent: sorted(&sent), received: sorted(&received), streams, bytes })
    };
    flows.iter().zip(tasks).map(end).collect()
}

/// A server that ends when it has served its flow.
fn serve(flow: &Flow<'_>, port: u16) -> Result<Task, GuestError> {
    flow.to.launch(&format!("iperf -s -p {port} -P {} -f b", flow.streams))
}

fn listening(flow: &Flow<'_>, port: u16) -> Result<(), GuestError> {
    let mut deadline = Deadline::new(PATIENCE);
    while !flow.to.listens(port)? {
        if deadline.is_over() {
            return Err(GuestError::Tool {
                tool: "iperf -s".into(),
                stderr: "does not listen".into(),
            });
        }
        sleep(Duration::from_millis(10))?;
    }
    Ok(())
}

fn send(flow: &Flow<'_>, port: u16, amount: Amount) -> Result<Task, GuestError> {
    let Flow { from, address, streams, batches, .. } = flow;
    // A congestion control that paces would stretch batches. This one does not, and every kernel
    // has it.
    let paced = |Batches { bytes, rate }| format!("-N -Z reno -l {bytes} -b {rate}");
    let paced = batches.map(paced).unwrap_or_default();
    from.launch(&format!(
        "iperf -c {address} -p {port} -P {streams} {} {paced} -f b",
        amount.option()
    ))
}

fn sleep(time: Duration) -> Result<(), GuestError> {
    if interrupt::sleep(time) { Ok(()) } else { Err(GuestError::Interrupted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(sent: &[u64], received: &[u64], streams: u16) -> Carried<()> {
        let ends = Ends { sent: sent.into(), received: received.into(), streams, bytes: None };
        Carried { looks: [(), ()], time: Duration::ZERO, ends: vec![ends] }
    }

    fn holds(carried: &Carried<()>) -> bool {
        let mut outcome = Outcome::default();
        carried.check(&mut outcome);
        outcome.broken().is_none()
    }

    #[test]
    fn a_byte_or_a_stream_that_is_missing_is_seen() {
        assert!(holds(&carried(&[5, 7], &[5, 7], 2)));
        assert!(!holds(&carried(&[5, 7], &[5, 6], 2)));
        assert!(!holds(&carried(&[5, 7], &[5, 7], 3)));
        assert!(!holds(&carried(&[0, 7], &[0, 7], 2)));
        assert!(!holds(&carried(&[], &[], 1)));
        let mut exact = carried(&[5, 5], &[5, 5], 2);
        exact.ends[0].bytes = Some(5);
        assert!(holds(&exact));
        exact.ends[0].bytes = Some(6);
        assert!(!holds(&exact));
    }
}
