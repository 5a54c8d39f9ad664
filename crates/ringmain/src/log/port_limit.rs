//! A limit of the log lines that the peers of a port or of a disk cause.
//!
//! A line about a front-end or a guest (a connection, a negotiation, a violation) carries the name
//! of its port or disk. Lines beyond a rate are left out, and their number is logged. Lines of the
//! daemon's own commands are not counted.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::LINES;

/// Lines of one port that are written at once, after a pause.
const BURST: u32 = 100;

/// The time after which one more line may be written.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time between the first omitted line and the line with the number of omitted lines.
const REPORT: Duration = Duration::from_secs(2);

/// Most accounts. When there are as many, idle ones are removed before another port gets one.
const ACCOUNTS: usize = 4096;

/// Crates whose lines no peer causes.
const OWN: [&str; 2] = ["ringmain", "control"];

/// The lines of one port.
#[derive(Debug)]
struct Account {
    /// The time at which the rate will have allowed all lines so far.
    allowed: Instant,
    /// Omitted lines that were not reported yet.
    left_out: u64,
}

/// The accounts of all ports, or of all disks, by name.
#[derive(Debug, Default)]
struct Accounts(HashMap<String, Account>);

impl Accounts {
    /// Whether a line of a port may be written at `now`.
    fn admits(&mut self, port: &str, now: Instant) -> bool {
        if !self.0.contains_key(port) {
            if self.0.len() >= ACCOUNTS {
                self.0.retain(|_, account| account.allowed > now || account.left_out > 0);
            }
            self.0.insert(port.to_owned(), Account { allowed: now, left_out: 0 });
        }
        let Some(account) = self.0.get_mut(port) else { return true };
        let allowed = account.allowed.max(now) + INTERVAL;
        let admits = allowed - now <= INTERVAL * BURST;
        match admits {
            true => account.allowed = allowed,
            false => account.left_out += 1,
        }
        admits
    }

    /// Takes the ports with omitted lines, and the number of those lines.
    fn take_left_out(&mut self) -> Vec<(String, u64)> {
        let accounts = self.0.iter_mut().filter(|(_, account)| account.left_out > 0);
        let take = |(port, account): (&String, &mut Account)| {
            (port.clone(), std::mem::take(&mut account.left_out))
        };
        accounts.map(take).collect()
    }
}

/// All accounts. A port and a disk of the same name have one each.
#[derive(Debug, Default)]
struct AllAccounts {
    ports: Accounts,
    disks: Accounts,
}

static ACCOUNTS_OF_ALL: Mutex<Option<AllAccounts>> = Mutex::new(None);

fn accounts() -> MutexGuard<'static, Option<AllAccounts>> {
    ACCOUNTS_OF_ALL.lock()
}

/// Logs how many lines were omitted since the last report.
pub fn report() {
    let take = |all: &mut AllAccounts| (all.ports.take_left_out(), all.disks.take_left_out());
    let (ports, disks) = accounts().as_mut().map(take).unwrap_or_default();
    for (port, lines) in ports {
        warn!(port, lines, "log lines left out: too many because of the port's peer");
    }
    for (disk, lines) in disks {
        warn!(disk, lines, "log lines left out: too many because of the disk's peer");
    }
}

/// The filter.
pub struct PortLimit;

impl<S: Subscriber> Layer<S> for PortLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let source = event.metadata().target().split("::").next().unwrap_or_default();
        if OWN.contains(&source) {
            return true;
        }
        let mut names = Names::default();
        event.record(&mut names);
        let now = Instant::now();
        let admits = match names {
            Names { port: Some(port), .. } => {
                accounts().get_or_insert_default().ports.admits(&port, now)
            }
            Names { disk: Some(disk), .. } => {
                accounts().get_or_insert_default().disks.admits(&disk, now)
            }
            _ => return true,
        };
        if !admits {
            LINES.set_alarm(REPORT);
        }
        admits
    }
}

/// The values of an event's fields `port` and `disk`.
#[derive(Default)]
struct Names {
    port: Option<String>,
    disk: Option<String>,
}

impl Visit for Names {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, || format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, || value.to_owned());
    }
}

impl Names {
    fn take(&mut self, field: &Field, value: impl FnOnce() -> String) {
        match field.name() {
            "port" => self.port = Some(value()),
            "disk" => self.disk = Some(value()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_a_burst_and_a_rate_of_its_own() {
        let (mut accounts, start) = (Accounts::default(), Instant::now());
        let written = (0..1000).filter(|_| accounts.admits("a", start)).count();
        assert_eq!(written, BURST as usize);
        assert!(accounts.admits("b", start));
        assert_eq!(accounts.take_left_out(), [("a".to_owned(), 1000 - u64::from(BURST))]);
        assert_eq!(accounts.take_left_out(), []);
        let later = start + 10 * INTERVAL;
        let written = (0..1000).filter(|_| accounts.admits("a", later)).count();
        assert_eq!(written, 10);
    }

    #[test]
    fn names_of_ports_that_went_are_forgotten() {
        let (mut accounts, start) = (Accounts::default(), Instant::now());
        for n in 0..3 * ACCOUNTS as u32 {
            assert!(accounts.admits(&n.to_string(), start + n * INTERVAL));
            assert!(accounts.0.len() <= ACCOUNTS);
        }
    }
}
