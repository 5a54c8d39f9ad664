//! What the operator wrote: the configuration file, and descriptions of single ports.

pub mod defaults;
mod document;
pub mod extensions;
mod options;
mod polling;
mod port;

use std::path::{Path, PathBuf};

use document::{Fields, Value};
use network::poll::PollingPolicy;

pub use document::ConfigError;
pub use options::keys as option_keys;
pub use port::{MAX_QUEUES, Mode, PortKind, PortSpec};

/// Where the control socket is unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ringmain/control.sock";

/// Most workers that `count` may ask for.
const MAX_WORKERS: u16 = 64;
/// Longest path of a UNIX socket in bytes: `sun_path` less its final zero.
const SOCKET_PATH: usize = 107;

/// What the configuration is checked against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// CPUs that this process may use, ascending.
    pub cpus: Vec<u16>,
}

impl Host {
    /// This process, here and now.
    pub fn probe() -> std::io::Result<Host> {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None)?;
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u16);
        Ok(Host { cpus: cpus.collect() })
    }
}

/// A whole configuration, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// How many worker threads.
    pub workers: usize,
    /// The CPU that each worker is pinned to; empty when they are not pinned.
    pub cpus: Vec<u16>,
    /// How they wait for frames, where a port does not say.
    pub policy: PollingPolicy,
    /// Queue pairs change workers when one is loaded and another is not.
    pub balance: bool,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// The ports, in the order of the file.
    pub ports: Vec<PortSpec>,
}

impl Config {
    /// Reads the text of a configuration file. `name` is what errors call the file.
    pub fn parse(name: &str, text: &str, host: &Host) -> Result<Config, ConfigError> {
        let mut top = Fields::of_file(name, text)?;
        let workers = workers(top.table("workers")?, host)?;
        let mut control = top.table("control")?;
        let socket = socket(&mut control)?;
        control.finish()?;
        let ports = ports(top.tables("port")?, &socket)?;
        top.finish()?;
        let Workers { count, cpus, policy, balance } = workers;
        Ok(Config { workers: count, cpus, policy, balance, socket, ports })
    }
}

/// What is said of the workers.
struct Workers {
    count: usize,
    cpus: Vec<u16>,
    policy: PollingPolicy,
    balance: bool,
}

fn workers(mut fields: Fields, host: &Host) -> Result<Workers, ConfigError> {
    let right = format!("1 to {MAX_WORKERS} or \"auto\"");
    let count = match fields.take("count") {
        None => None,
        Some(value) if value.as_text() == Some("auto") => None,
        Some(value) => {
            Some(usize::from(fields.as_number("count", &value, 1..=MAX_WORKERS, &right)?))
        }
    };
    let cpus = cpus(&mut fields, host, count)?;
    let policy = polling::read(&mut fields)?.unwrap_or_default();
    let balance = fields.switch("balance")?.unwrap_or(true);
    fields.finish()?;
    let auto = if cpus.is_empty() { defaults::workers(host.cpus.len()) } else { cpus.len() };
    Ok(Workers { count: count.unwrap_or(auto), cpus, policy, balance })
}

fn cpus(fields: &mut Fields, host: &Host, workers: Option<usize>) -> Result<Vec<u16>, ConfigError> {
    let right = format!("one CPU for each worker, out of {}", ranges(&host.cpus));
    let Some((list, whole)) = fields.numbers("cpus", 0..=u16::MAX, &right)? else {
        return Ok(Vec::new());
    };
    let mut cpus = Vec::new();
    for (cpu, value) in list {
        let wrong = |problem: &str| {
            fields.wrong("cpus", &value, format_args!("CPU {cpu} {problem}; give {right}"))
        };
        if !host.cpus.contains(&cpu) {
            return Err(wrong("is not available to this process"));
        }
        if cpus.contains(&cpu) {
            return Err(wrong("is listed twice"));
        }
        cpus.push(cpu);
    }
    match workers {
        Some(workers) if workers != cpus.len() => {
            let problem = format!("{} CPUs for {workers} workers; give {right}", cpus.len());
            Err(fields.wrong("cpus", &whole, problem))
        }
        None if cpus.len() > usize::from(MAX_WORKERS) => Err(fields.wrong(
            "cpus",
            &whole,
            format_args!("{} CPUs; give at most {MAX_WORKERS}", cpus.len()),
        )),
        _ => Ok(cpus),
    }
}

fn socket(control: &mut Fields) -> Result<PathBuf, ConfigError> {
    let right = format!("the path of a socket, like {DEFAULT_SOCKET:?}");
    match control.text("socket", &right)? {
        Some((text, value)) => socket_path(control, &text, &value),
        None => Ok(PathBuf::from(DEFAULT_SOCKET)),
    }
}

/// Checks that a text can be the path of a UNIX socket.
fn socket_path(fields: &Fields, text: &str, value: &Value) -> Result<PathBuf, ConfigError> {
    let problem = if text.is_empty() || text.contains('\0') || text.ends_with('/') {
        format!("{value} is not the path of a socket; give one of 1 to {SOCKET_PATH} bytes")
    } else if text.len() > SOCKET_PATH {
        format!("the path is {} bytes long; give one of at most {SOCKET_PATH}", text.len())
    } else {
        return Ok(PathBuf::from(text));
    };
    Err(fields.wrong("socket", value, problem))
}

fn ports(tables: Vec<Fields>, control: &Path) -> Result<Vec<PortSpec>, ConfigError> {
    let mut ports: Vec<(PortSpec, String)> = Vec::new();
    for table in tables {
        let path = table.path().to_owned();
        let known = ports.iter().map(|(port, path)| (port, path.as_str()));
        let port = port::read(table, known, control)?;
        ports.push((port, path));
    }
    Ok(ports.into_iter().map(|(port, _)| port).collect())
}

/// A list of numbers as people write it: `0-3, 8`.
fn ranges(numbers: &[u16]) -> String {
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

#[cfg(test)]
mod tests;
