//! The `[workers]` table.

use std::fmt;
use std::ops::RangeInclusive;

use network::poll::PollingPolicy;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use toml::Spanned;

use super::source::{Problems, VALUE};
use super::value::{Limits, List, Number, TableName, Text};
use super::{defaults, host::Host};

/// Most workers that `count` may give.
const MAX_WORKERS: u16 = 64;

/// The table as written.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct WorkersTable {
    count: Option<Spanned<Count>>,
    cpus: Option<Spanned<List<Number<Cpu>>>>,
    interrupt_cpu: Option<Spanned<Number<InterruptCpu>>>,
    polling: Option<Spanned<Text<PollingPolicy>>>,
    balance: Option<bool>,
}

impl TableName for WorkersTable {
    const EXPECTED: &'static str = "a table; write [workers]";
}

/// How many workers.
#[derive(Clone, Copy, Debug)]
enum Count {
    /// The number that suits the host.
    Auto,
    /// This number.
    Exactly(u16),
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl CountVisitor {
    fn right() -> String {
        format!("1 to {MAX_WORKERS} or \"auto\"")
    }
}

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number; give {}", Self::right())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Count, E> {
        match u16::try_from(number) {
            Ok(count @ 1..=MAX_WORKERS) => Ok(Count::Exactly(count)),
            _ => Err(E::custom(format_args!("{VALUE} is out of range; give {}", Self::right()))),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Count, E> {
        match text {
            "auto" => Ok(Count::Auto),
            _ => Err(E::invalid_type(Unexpected::Str(text), &self)),
        }
    }
}

/// The number of a CPU.
#[derive(Clone, Copy, Debug)]
struct Cpu;

impl Limits for Cpu {
    const RANGE: RangeInclusive<u16> = 0..=u16::MAX;

    /// The list of CPUs is added when it is known.
    fn right() -> String {
        "one CPU for each worker".to_owned()
    }
}

/// The number of the CPU of the thread for interrupts.
#[derive(Clone, Copy, Debug)]
struct InterruptCpu;

impl Limits for InterruptCpu {
    const RANGE: RangeInclusive<u16> = 0..=u16::MAX;

    /// The list of CPUs is added when it is known.
    fn right() -> String {
        "a CPU without a worker".to_owned()
    }
}

/// The configuration of the workers.
pub(super) struct Workers {
    pub count: usize,
    pub cpus: Vec<u16>,
    pub interrupt_cpu: Option<u16>,
    pub policy: PollingPolicy,
    pub balance: bool,
}

/// Reads the table.
pub(super) fn read(table: WorkersTable, host: &Host, problems: &mut Problems<'_>) -> Workers {
    let count = match table.count.map(Spanned::into_inner) {
        None | Some(Count::Auto) => None,
        Some(Count::Exactly(count)) => Some(usize::from(count)),
    };
    let cpus = table.cpus.map(|list| cpus(&list, host, count, problems)).unwrap_or_default();
    problems.append("workers", "cpus", &format!(", out of {}", ranges(&host.cpus)));
    let interrupt_cpu = table.interrupt_cpu.map(|cpu| interrupt_cpu(&cpu, &cpus, host, problems));
    problems.append("workers", "interrupt-cpu", &format!(", out of {}", ranges(&host.cpus)));
    let auto = match cpus.len() {
        0 => defaults::workers(host.cpus.len() - usize::from(interrupt_cpu.is_some())),
        pinned => pinned,
    };
    Workers {
        count: count.unwrap_or(auto),
        cpus,
        interrupt_cpu,
        policy: table.polling.map(|policy| policy.into_inner().0).unwrap_or_default(),
        balance: table.balance.unwrap_or(true),
    }
}

fn cpus(
    list: &Spanned<List<Number<Cpu>>>,
    host: &Host,
    workers: Option<usize>,
    problems: &mut Problems<'_>,
) -> Vec<u16> {
    let mut cpus: Vec<u16> = Vec::new();
    for item in &list.get_ref().0 {
        let cpu = item.get_ref().0;
        let problem = if !host.cpus.contains(&cpu) {
            Some("is not available to this process")
        } else if cpus.contains(&cpu) {
            Some("is listed twice")
        } else {
            None
        };
        if let Some(problem) = problem {
            let problem = format!("CPU {cpu} {problem}; give {}", Cpu::right());
            problems.add("workers", "cpus", &item.span(), problem);
        }
        cpus.push(cpu);
    }
    let given = number_of(cpus.len(), "CPU");
    let problem = match workers {
        Some(workers) if workers != cpus.len() => {
            format!("{given} for {}; give {}", number_of(workers, "worker"), Cpu::right())
        }
        None if cpus.len() > usize::from(MAX_WORKERS) => {
            format!("{given}; give at most {MAX_WORKERS}")
        }
        _ => return cpus,
    };
    problems.add("workers", "cpus", &list.span(), problem);
    cpus
}

fn interrupt_cpu(
    number: &Spanned<Number<InterruptCpu>>,
    workers: &[u16],
    host: &Host,
    problems: &mut Problems<'_>,
) -> u16 {
    let cpu = number.get_ref().0;
    let problem = if !host.cpus.contains(&cpu) {
        "is not available to this process"
    } else if workers.contains(&cpu) {
        "is that of a worker"
    } else {
        return cpu;
    };
    let problem = format!("CPU {cpu} {problem}; give {}", InterruptCpu::right());
    problems.add("workers", "interrupt-cpu", &number.span(), problem);
    cpu
}

/// A number of things, in words.
fn number_of(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A list of numbers in text form: `0-3, 8`.
pub(super) fn ranges(numbers: &[u16]) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let run = |(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}
