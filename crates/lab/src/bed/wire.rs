//! Two namespaces with nothing but the kernel between them: what frames cost that no switch of ours
//! carries.

use super::station::Station;
use super::streams::{Amount, Batches, Flow, carry};
use crate::cpu::Moment;
use crate::experiment::{LabError, Outcome, Setup};
use crate::guest::Namespace;

/// The interface of either end.
const INTERFACE: &str = "eth0";

/// Two namespaces, and what connects them. All of it goes when this does.
#[derive(Debug)]
pub struct Wire {
    ends: [Namespace; 2],
    _middle: Option<Namespace>,
}

/// What an interface has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Received {
    bytes: u64,
    frames: u64,
}

/// What was seen while streams ran over a wire.
#[derive(Debug)]
pub struct Wired {
    /// `throughput` (Gb/s of frames that the receiver got), `busy` (% of a CPU), what others took,
    /// and whether streams were complete.
    pub outcome: Outcome,
    /// CPU time of the whole machine for each frame that was received, in nanoseconds.
    pub frame_ns: f64,
}

impl Wire {
    /// A pair of interfaces, one in each namespace.
    ///
    /// # Errors
    /// When namespaces or interfaces cannot be made.
    pub fn direct() -> Result<Wire, LabError> {
        let ends = [Namespace::new()?, Namespace::new()?];
        ends[0].ip(&format!(
            "link add {INTERFACE} type veth peer name {INTERFACE} netns {}",
            ends[1].id()
        ))?;
        Wire { ends, _middle: None }.up()
    }

    /// A bridge in a third namespace between them.
    ///
    /// # Errors
    /// As for [`direct`](Self::direct).
    pub fn bridged() -> Result<Wire, LabError> {
        let (middle, ends) = (Namespace::new()?, [Namespace::new()?, Namespace::new()?]);
        middle.ip("link add br0 type bridge\nlink set br0 up")?;
        for (n, end) in ends.iter().enumerate() {
            let id = end.id();
            middle.ip(&format!(
                "link add port{n} type veth peer name {INTERFACE} netns {id}\nlink set port{n} master br0 up"
            ))?;
        }
        Wire { ends, _middle: Some(middle) }.up()
    }

    fn up(self) -> Result<Wire, LabError> {
        for (end, host) in self.ends.iter().zip(1..) {
            end.ip(&format!(
                "addr add 10.77.0.{host}/24 dev {INTERFACE}\nlink set {INTERFACE} up"
            ))?;
        }
        Ok(self)
    }

    /// The namespace that sends.
    pub fn sender(&self) -> &Namespace {
        &self.ends[0]
    }

    /// Has streams run.
    ///
    /// # Errors
    /// When a tool fails, or the user interrupts.
    pub fn measure(
        &self,
        setup: &Setup<'_>,
        streams: u16,
        batches: Option<Batches>,
    ) -> Result<Wired, LabError> {
        let [from, to] = &self.ends;
        let id = to.id();
        let (from, to): (&dyn Station, &dyn Station) = (from, to);
        let flow = Flow { from, to, address: "10.77.0.2".into(), streams, batches };
        let helpers = helpers();
        let look = |ids: &[u32]| {
            Ok::<_, LabError>((Moment::now(&[&helpers[..], ids].concat()), received(id)))
        };
        let carried = carry(&[flow], Amount::of(setup), look)?;
        let [(before, then), (after, now)] = &carried.looks;
        let (shares, seconds) = (after.since(before), carried.time.as_secs_f64());
        let busy = shares.busy();
        let mut outcome = Outcome::default();
        outcome.figure("throughput", (now.bytes - then.bytes) as f64 * 8.0 / seconds / 1e9);
        outcome.figure("busy", busy * 100.0);
        outcome.disturbance(&shares);
        carried.check(&mut outcome);
        Ok(Wired {
            outcome,
            frame_ns: busy * seconds * 1e9 / (now.frames - then.frames).max(1) as f64,
        })
    }
}

/// The kernel's own threads that carry frames when the programs' turns are not enough: no
/// disturbance here.
fn helpers() -> Vec<u32> {
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let name = |id: &u32| std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    ids.filter(|id| name(id).starts_with("ksoftirqd/")).collect()
}

/// What the interface in the namespace of a process has received so far.
fn received(id: u32) -> Received {
    read(&std::fs::read_to_string(format!("/proc/{id}/net/dev")).unwrap_or_default())
        .unwrap_or_default()
}

/// Reads /proc/net/dev: "eth0: bytes packets ...".
fn read(table: &str) -> Option<Received> {
    let line =
        table.lines().find_map(|line| line.trim().strip_prefix(INTERFACE)?.strip_prefix(':'))?;
    let mut words = line.split_whitespace().map_while(|word| word.parse().ok());
    Some(Received { bytes: words.next()?, frames: words.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_in_the_kernels_table() {
        let table = "Inter-|   Receive\n face |bytes    packets errs\n    lo:  7 1 0\n  eth0: 1500 3 0 0\n eth01: 9 9\n";
        assert_eq!(read(table), Some(Received { bytes: 1500, frames: 3 }));
        assert_eq!((read("lo: 7 1"), read("eth0: x")), (None, None));
        assert_eq!(received(u32::MAX), Received::default());
    }
}
