//! An unbroken row of pings between two guests.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use lab::guest::ChildProcess;
use rustix::process::{Pid, Signal, kill_process};

use crate::site::{Site, guest};

/// Pings until this value goes.
pub struct Pings {
    ping: ChildProcess,
    answered: Arc<AtomicU64>,
    reader: Option<JoinHandle<Said>>,
}

/// What `ping` printed.
#[derive(Default)]
struct Said {
    /// The highest number of a request that was answered. They are numbered from 1 on.
    highest: u64,
    /// The last line but one: the sum.
    sum: String,
}

impl Pings {
    /// Begins.
    pub fn start(site: &Site, from: usize, to: usize) -> Pings {
        let mut command = site.guests[from].command("ping");
        command.args(["-n", "-i", "0.05", "-W", "30", &guest(to, false)]);
        let mut ping = ChildProcess::start(command.stdout(Stdio::piped())).unwrap();
        let lines = BufReader::new(ping.child().stdout.take().unwrap()).lines();
        let answered = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&answered);
        let reader = spawn(move || {
            let mut said = Said::default();
            for line in lines.map_while(Result::ok) {
                if line.contains(" bytes from ") {
                    counter.fetch_add(1, Ordering::Relaxed);
                    said.highest = said.highest.max(number(&line));
                } else if line.contains(" packets transmitted") {
                    said.sum = line;
                }
            }
            said
        });
        Pings { ping, answered, reader: Some(reader) }
    }

    /// How many were answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// The same when no answer has come for a while.
    pub fn settled(&self) -> u64 {
        let mut before = self.answered();
        loop {
            sleep(Duration::from_secs(1));
            let now = self.answered();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// Ends. Nothing must be missing but the answer to the last request, which may be under way
    /// still.
    pub fn none_lost(mut self) {
        let id = i32::try_from(self.ping.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(id, Signal::INT).unwrap();
        let Said { highest, sum } = self.reader.take().unwrap().join().unwrap();
        let words: Vec<u64> = sum.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [sent, answered, ..] = words[..] else { panic!("{sum}") };
        assert!(sent - answered <= 1 && sent > 10, "{sum}");
        assert_eq!(highest, answered, "a request before the last has no answer: {sum}");
    }
}

/// The number of the request that a line is about: "... icmp_seq=7 ttl=64 ...".
fn number(line: &str) -> u64 {
    let (_, behind) = line.split_once("icmp_seq=").unwrap_or_else(|| panic!("{line}"));
    behind.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}
