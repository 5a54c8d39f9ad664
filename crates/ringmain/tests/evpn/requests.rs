//! The requests for addresses that come to a guest, as tcpdump sees them.

use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStdout, Stdio};

use lab::guest::ChildProcess;

use crate::site::Site;

/// Listens until this value goes.
pub struct Requests {
    lines: Lines<BufReader<ChildStdout>>,
    _tcpdump: ChildProcess,
}

impl Requests {
    /// Begins to listen at a guest.
    pub fn start(site: &Site, host: usize) -> Requests {
        let mut command = site.guests[host].command("tcpdump");
        // Solicitations have no extension headers.
        command.args(["-l", "-n", "-t", "-i", "rm-vm", "arp or (icmp6 and ip6[40] == 135)"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tcpdump = ChildProcess::start(&mut command).unwrap();
        // It says so when it listens.
        let said = BufReader::new(tcpdump.child().stderr.take().unwrap());
        assert!(said.lines().map_while(Result::ok).any(|line| line.starts_with("listening on")));
        let lines = BufReader::new(tcpdump.child().stdout.take().unwrap()).lines();
        Requests { lines, _tcpdump: tcpdump }
    }

    /// Waits for a request for `address`. None for `absent` may come before.
    pub fn skip_to(&mut self, address: &str, absent: &str) {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            let asks_for = |address: &str| {
                line.contains(&format!("who has {address},"))
                    || line.contains(&format!("who-has {address} "))
            };
            assert!(!asks_for(absent), "{line}");
            if asks_for(address) {
                return;
            }
        }
        panic!("tcpdump has ended");
    }
}
