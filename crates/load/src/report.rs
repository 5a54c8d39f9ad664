//! The report of a run.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cpu;

/// Frames of one direction.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// Number of the sending guest, in the order of the sockets.
    pub from: u16,
    /// Number of the receiving guest.
    pub to: u16,
    /// Million right frames per second, while measured.
    pub mpps: f64,
    /// Their bits, 10^9 per second, Ethernet header included, without preamble, FCS and gap.
    pub gbps: f64,
    /// Frames sent in the whole run.
    pub sent: u64,
    /// Right frames received in the whole run, each counted once.
    pub received: u64,
    /// Frames that never came.
    pub lost: u64,
    /// Frames that were wrong.
    pub corrupt: u64,
    /// Frames that came after a later one of their flow.
    pub reordered: u64,
    /// Frames that came more than once.
    pub duplicate: u64,
    /// Time from before sending until the receiver looked.
    pub latency: Latency,
    /// The fault of the first wrong frame.
    pub first_fault: Option<String>,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "percentiles")]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
}

impl Latency {
    /// From latencies in ns.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max() as f64 / 1000.0,
        }
    }
}

/// CPU time while measured, in percent of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// The generator.
    pub own: f64,
    /// The back-end, if its process was named.
    pub backend: Option<f64>,
    /// All other processes, and the kernel's interrupts.
    pub others: f64,
    /// Time that a hypervisor below gave to others (steal).
    pub stolen: f64,
}

impl Shares {
    /// From shares of this process and, if there was one, the back-end's.
    pub fn of(shares: &cpu::Shares) -> Self {
        let percent = |share: f64| share * 100.0;
        Self {
            own: percent(shares.of.first().copied().unwrap_or(0.0)),
            backend: shares.of.get(1).copied().map(percent),
            others: percent(shares.others),
            stolen: percent(shares.stolen),
        }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of a frame.
    pub size: u32,
    /// Queue pairs of a guest.
    pub queues: u16,
    /// Flows of a sender.
    pub flows: u32,
    /// Seconds that were measured.
    pub seconds: f64,
    /// Over all directions.
    pub mpps: f64,
    /// Over all directions.
    pub gbps: f64,
    /// The results of each direction.
    pub directions: Vec<Direction>,
    /// Kicks that the back-end asked for, in the whole run.
    pub kicks: u64,
    /// Interrupts that it raised.
    pub interrupts: u64,
    /// Percent of the attempts to send for which the ring had no room. Near 0 in an open loop: the
    /// generator was the bottleneck, not the back-end.
    pub full: f64,
    /// Unicast frames that came to a guest to which no guest sends.
    pub strays: u64,
    /// CPU time while measured, by user.
    pub cpu: Shares,
    /// Others, or the hypervisor, took more CPU than the options allow.
    pub disturbed: bool,
}

impl Report {
    /// Whether all frames that came were right, in order and unique. Loss is no fault of a switch
    /// whose receiver has no buffers.
    pub fn is_right(&self) -> bool {
        self.directions.iter().all(|d| d.corrupt == 0 && d.reordered == 0 && d.duplicate == 0)
    }

    /// Frames that never came, in all directions.
    pub fn lost(&self) -> u64 {
        self.directions.iter().map(|d| d.lost).sum()
    }

    /// As JSON, for other programs.
    pub fn to_json(&self) -> String {
        // Serialising cannot fail: there are no maps with other keys than strings.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: u32, what| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (queues, flows) =
            (plural(self.queues.into(), "queue pair"), plural(self.flows, "flow"));
        writeln!(f, "{} bytes, {queues}, {flows}, {:.2} s measured", self.size, self.seconds)?;
        writeln!(f)?;
        writeln!(
            f,
            "from  to    Mpps    Gb/s        sent    received       lost  corrupt  late  twice"
        )?;
        for d in &self.directions {
            let (sent, received, lost) = (d.sent, d.received, d.lost);
            write!(
                f,
                "{:>4} {:>3} {:>7.3} {:>7.2} {sent:>11} {received:>11} {lost:>10}",
                d.from, d.to, d.mpps, d.gbps
            )?;
            writeln!(f, " {:>8} {:>5} {:>6}", d.corrupt, d.reordered, d.duplicate)?;
        }
        writeln!(f, " all     {:>7.3} {:>7.2}", self.mpps, self.gbps)?;
        writeln!(f)?;
        writeln!(f, "latency, us     p50      p90      p99    p99.9      max")?;
        for d in &self.directions {
            let l = d.latency;
            write!(f, "{:>4} to {:<3} {:>8.2} {:>8.2} {:>8.2}", d.from, d.to, l.p50, l.p90, l.p99)?;
            writeln!(f, " {:>8.2} {:>8.2}", l.p99_9, l.max)?;
        }
        writeln!(f)?;
        let received: u64 = self.directions.iter().map(|d| d.received).sum();
        write!(f, "{} kicks, {} interrupts", self.kicks, self.interrupts)?;
        if self.interrupts > 0 {
            write!(f, " ({:.1} frames each)", received as f64 / self.interrupts as f64)?;
        }
        write!(f, "; Tx rings full {:.0} % of the times", self.full)?;
        match self.strays {
            0 => writeln!(f)?,
            strays => writeln!(f, "; {strays} frames came to a guest to which no guest sends")?,
        }
        let backend = self.cpu.backend.map(|b| format!("back-end {b:.0} %, ")).unwrap_or_default();
        let Shares { own, others, stolen, .. } = self.cpu;
        write!(
            f,
            "CPU: generator {own:.0} %, {backend}others {others:.1} %, hypervisor {stolen:.1} %"
        )?;
        writeln!(f, "{}", if self.disturbed { ": a DISTURBED run" } else { "" })?;
        for d in &self.directions {
            if let Some(fault) = &d.first_fault {
                writeln!(f, "\nfirst wrong frame from {} to {}: {fault}", d.from, d.to)?;
            }
        }
        Ok(())
    }
}
