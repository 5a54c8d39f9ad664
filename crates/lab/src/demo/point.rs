//! One measurement: eight streams for some seconds with a given number of queues.

use super::site::{Counts, QueueCount, Site};
use super::{ADDRESSES, Args, DemoError, TIMEOUT};
use load::cpu::Snapshot;

use crate::guest::{GuestError, Job, Shell};
use crate::interrupt;
use crate::progress::{Progress, Stage};
use crate::statistics::parts;
use crate::table::{REMARK, aligned, is_disturbed, mark};
use control::api::PortProfile;
use std::time::{Duration, Instant};

/// How long the streams run before counting begins.
pub(crate) const WARM_UP: Duration = Duration::from_millis(1500);

/// The measurement with one number of queues.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) queues: u16,
    /// Gb/s that the streams got in sum, as iperf says.
    pub(crate) gbps: f64,
    /// CPUs that the daemon used (1.0: one of them, wholly); none for the kernel's bridge.
    pub(crate) daemon: Option<f64>,
    /// Frames put into guests for each interrupt; none where they are not counted.
    pub(crate) frames_per_interrupt: Option<f64>,
    /// The share of each of the sender's queues in the bytes sent.
    pub(crate) sender: Vec<f64>,
    /// The share of each of the receiver's queues in the bytes received.
    pub(crate) receiver: Vec<f64>,
    /// CPUs that others took: processes of others, or virtual machines to which a hypervisor below
    /// gave them to.
    pub(crate) others: f64,
    /// CPUs that were busy beyond the guests' virtual CPUs: the daemon, QEMU's other threads, the
    /// host's kernel, and others. None where virtual CPUs are no threads of this machine.
    pub(crate) beyond: Option<f64>,
    /// CPUs that the guests' virtual CPUs used. None where these are no threads of this machine.
    pub(crate) guests: Option<f64>,
    /// The profile of received frames, if it was taken afterwards.
    pub(crate) profile: Option<PortProfile>,
}

/// The counts and CPU time taken while the streams ran.
pub(crate) struct Sample {
    /// CPUs that the daemon used, if there is one.
    pub(crate) daemon: Option<f64>,
    /// CPUs that others took.
    pub(crate) others: f64,
    /// CPUs that were busy beyond the guests' virtual CPUs, if that is known.
    pub(crate) beyond: Option<f64>,
    /// CPUs that the guests' virtual CPUs used, if that is known.
    pub(crate) guests: Option<f64>,
    /// The counts meanwhile.
    pub(crate) counts: Counts,
}

impl Point {
    /// The point with this number of queues, from the output of iperf.
    pub(crate) fn new(queues: u16, said: String, sample: &Sample) -> Result<Point, DemoError> {
        let Sample { daemon, others, beyond, guests, counts } = sample;
        let gbps = sum(&said).ok_or(DemoError::NoSum(said))?;
        let in_use = usize::from(queues);
        Ok(Point {
            queues,
            gbps,
            daemon: *daemon,
            frames_per_interrupt: counts.frames_per_interrupt(),
            sender: shares(&counts.sender, in_use, |queue| queue.tx_bytes),
            receiver: shares(&counts.receiver, in_use, |queue| queue.rx_bytes),
            others: *others,
            beyond: *beyond,
            guests: *guests,
            profile: None,
        })
    }

    /// The rate in Gb/s. Emulated processors on a loaded machine carry a few Mb/s.
    pub(crate) fn rate(&self) -> String {
        let decimals = if self.gbps < 0.1 { 4 } else { 2 };
        format!("{:.decimals$}", self.gbps)
    }

    pub(crate) fn disturbed(&self) -> bool {
        is_disturbed(self.others)
    }

    /// CPU time beyond the guests' virtual CPUs, in nanoseconds for each 1000 bytes.
    pub(crate) fn beyond_per_kilobyte(&self) -> Option<f64> {
        Some(self.beyond? * 8000.0 / self.gbps)
    }

    /// CPU time of the guests' virtual CPUs, in nanoseconds for each 1000 bytes.
    pub(crate) fn guests_per_kilobyte(&self) -> Option<f64> {
        Some(self.guests? * 8000.0 / self.gbps)
    }

    /// The rate in Gb/s if the guests had all CPU time that was used beyond them, and spent as much
    /// on each byte. No datapath can be faster without a change of what the guests do.
    pub(crate) fn bound(&self) -> Option<f64> {
        let guests = self.guests.filter(|guests| *guests > 0.0)?;
        Some(self.gbps * (guests + self.beyond?) / guests)
    }
}

/// Starts a server of streams in the receiver, once the sender reaches it. The server ends with the
/// value.
pub(crate) fn serve(site: &dyn Site, progress: &Progress) -> Result<Job, DemoError> {
    let stage = progress.stage("looking whether they see each other");
    let [sender, receiver] = site.guests();
    reach(sender)?;
    let server = receiver.spawn("iperf -s")?;
    receiver.must("until netstat -ltn | grep -q ':5001 '; do usleep 20000; done", TIMEOUT)?;
    stage.done("they do");
    Ok(server)
}

/// Sets the number of queues in both guests, and measures.
pub(crate) fn measure(
    args: &Args,
    site: &dyn Site,
    queues: u16,
    progress: &Progress,
) -> Result<Point, DemoError> {
    let plural = if queues == 1 { "queue" } else { "queues" };
    let over = site.title();
    let stage = progress.stage(format!("{over}: {} streams over {queues} {plural}", args.streams));
    site.set_queues(queues)?;
    let [sender, _] = site.guests();
    reach(sender)?;
    let pids = site.processes();
    let seconds = Duration::from_secs(args.seconds.into());
    let total = WARM_UP + seconds;
    let streams = sender.spawn(&format!(
        "iperf -c {} -P {} -t {:.1} -f m 2>&1",
        ADDRESSES[1],
        args.streams,
        (total + WARM_UP).as_secs_f64()
    ))?;
    let countdown = Countdown::new(total, &stage);
    countdown.sleep_until(WARM_UP)?;
    let (cpu, used, counts) = (Snapshot::now(&pids), site.daemon()?, site.counts()?);
    let (virtual_cpus, since) = (site.virtual_cpus(), Instant::now());
    countdown.sleep_until(total)?;
    let shares = Snapshot::now(&pids).since(&cpu);
    let guests = site
        .virtual_cpus()
        .zip(virtual_cpus)
        .map(|(now, then)| now.saturating_sub(then).as_secs_f64() / since.elapsed().as_secs_f64());
    let beyond = guests.map(|guests| (shares.busy() - guests).max(0.0));
    let others = shares.others + shares.stolen;
    let daemon = site.daemon()?.zip(used).map(|(now, then)| now.since(then));
    let counts = site.counts()?.since(&counts);
    let said = streams.wait(seconds + TIMEOUT)?.text;
    let point = Point::new(queues, said, &Sample { daemon, others, beyond, guests, counts })?;
    stage.done(&format!("{} Gb/s", point.rate()));
    Ok(point)
}

/// The time since the streams began, as the stage shows it.
pub(crate) struct Countdown<'a> {
    began: Instant,
    total: Duration,
    stage: &'a Stage,
}

impl<'a> Countdown<'a> {
    /// Begins now; `total` is how long the whole takes.
    pub(crate) fn new(total: Duration, stage: &'a Stage) -> Self {
        Countdown { began: Instant::now(), total, stage }
    }

    /// Sleeps until so much time is over, or the user interrupts.
    pub(crate) fn sleep_until(&self, goal: Duration) -> Result<(), GuestError> {
        while self.began.elapsed() < goal && !interrupt::asked() {
            let (elapsed, total) = (self.began.elapsed(), self.total.as_secs_f64());
            self.stage.at(format!("{:.0} of {total:.0} s", elapsed.as_secs_f64()));
            std::thread::sleep(Duration::from_millis(50).min(goal.saturating_sub(elapsed)));
        }
        if interrupt::asked() { Err(GuestError::Interrupted) } else { Ok(()) }
    }
}

/// Waits until the sender reaches the receiver. Interfaces may take a moment to come up.
pub(crate) fn reach(sender: &dyn Shell) -> Result<(), DemoError> {
    sender.must(
        &format!("for try in $(seq 30); do ping -c 1 -w 2 {} && exit; done; false", ADDRESSES[1]),
        TIMEOUT,
    )?;
    Ok(())
}

fn shares(queues: &[QueueCount], in_use: usize, of: impl Fn(&QueueCount) -> u64) -> Vec<f64> {
    let counts: Vec<u64> = queues.iter().map(of).collect();
    // A queue that is out of use shows only when something was seen there.
    let shown = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1).max(in_use);
    parts(counts.into_iter().take(shown))
}

/// Gb/s in the last sum line of iperf, or of its only stream.
fn sum(said: &str) -> Option<f64> {
    let line = said.lines().rev().find(|line| line.contains("Mbits/sec"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let unit = words.iter().position(|word| *word == "Mbits/sec")?;
    words.get(unit.checked_sub(1)?)?.parse::<f64>().ok().map(|mbps| mbps / 1000.0)
}

/// The points as text.
pub(crate) fn table(points: &[Point]) -> String {
    let head = [
        "queues",
        "Gb/s",
        "daemon CPU",
        "frames per interrupt",
        "ns per kB",
        "sender's queues",
        "receiver's queues",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for point in points {
        rows.push([
            point.queues.to_string(),
            format!("{}{}", point.rate(), mark(point.disturbed())),
            point.daemon.map_or("-".into(), |cpu| format!("{:.0} %", cpu * 100.0)),
            point.frames_per_interrupt.map_or("-".into(), |frames| format!("{frames:.1}")),
            point.beyond_per_kilobyte().map_or("-".into(), |time| format!("{time:.0}")),
            percent(&point.sender),
            percent(&point.receiver),
        ]);
    }
    let mut text = aligned(&rows);
    if points.iter().any(|point| point.beyond.is_some()) {
        text.push_str(
            "  ns per kB: CPU time beyond the guests' virtual CPUs, for 1000 bytes of payload\n",
        );
    }
    if points.iter().any(Point::disturbed) {
        text.push_str(&format!("  {REMARK}\n"));
    }
    text
}

/// "52 + 48 %"; "-" where nothing was counted.
pub(crate) fn percent(shares: &[f64]) -> String {
    if shares.iter().all(|share| *share == 0.0) {
        return "-".into();
    }
    let parts: Vec<String> = shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
    format!("{} %", parts.join(" + "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_line_counts() {
        let said = "[ ID] Interval Transfer Bandwidth\n\
            [  1] 0.0000-8.1 sec  500 MBytes  519 Mbits/sec\n\
            [SUM] 0.0000-8.1 sec  2540 MBytes  2130 Mbits/sec\n[ CT] final connect times (min/avg/max/stdev)\n";
        assert_eq!(sum(said), Some(2.13));
        assert_eq!(sum("connect failed: Connection refused"), None);
    }

    #[test]
    fn shares_of_queues_in_use_add_up() {
        let queue = |tx_bytes| QueueCount { tx_bytes, ..QueueCount::default() };
        let shares_of =
            |queues: &[QueueCount], in_use| shares(queues, in_use, |queue| queue.tx_bytes);
        assert_eq!(shares_of(&[queue(1), queue(3), queue(0), queue(0)], 2), [0.25, 0.75]);
        assert_eq!(shares_of(&[queue(1), queue(0), queue(1)], 1), [0.5, 0.0, 0.5]);
        assert_eq!(percent(&[0.25, 0.75]), "25 + 75 %");
        assert_eq!(percent(&[0.0, 0.0]), "-");
    }

    #[test]
    fn a_disturbed_point_is_marked() {
        let point = Point {
            queues: 2,
            gbps: 1.5,
            daemon: Some(0.5),
            frames_per_interrupt: Some(12.0),
            sender: vec![0.5, 0.5],
            receiver: vec![0.5, 0.5],
            others: 0.5,
            beyond: Some(0.75),
            guests: Some(1.25),
            profile: None,
        };
        assert!(table(std::slice::from_ref(&point)).contains("1.50*"));
        assert_eq!(point.beyond_per_kilobyte(), Some(4000.0));
        assert_eq!(point.bound(), Some(2.4));
        assert!(!table(&[Point { others: 0.0, ..point }]).contains('*'));
    }
}
