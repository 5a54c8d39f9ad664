//! The requests for addresses that are addressed to all guests, as tcpdump sees them at one guest.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use lab::guest::ChildProcess;

use crate::site::Site;

/// Listens until this value goes.
pub struct Requests {
    lines: Receiver<String>,
    _tcpdump: ChildProcess,
}

impl Requests {
    /// Begins to listen at a guest.
    pub fn start(site: &Site, host: usize) -> Requests {
        let mut command = site.guests[host].command("tcpdump");
        // Guests that have an address also ask its owner alone, some seconds after they last used
        // it, whether the address is still there. Solicitations have no extension headers.
        const ASKS_ALL: &str = "ether multicast and (arp or (icmp6 and ip6[40] == 135))";
        command.args(["-l", "-n", "-t", "-i", "rm-vm", ASKS_ALL]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tcpdump = ChildProcess::start(&mut command).unwrap();
        // It says so when it listens.
        let said = BufReader::new(tcpdump.child().stderr.take().unwrap());
        assert!(said.lines().map_while(Result::ok).any(|line| line.starts_with("listening on")));
        let printed = BufReader::new(tcpdump.child().stdout.take().unwrap()).lines();
        let (sender, lines) = mpsc::channel();
        // The thread ends with tcpdump.
        std::thread::spawn(move || {
            printed.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Requests { lines, _tcpdump: tcpdump }
    }

    /// Waits for a request for `address`. None for `absent` may come before. `ask` makes a guest
    /// ask once more: an owner that probes its own neighbours saves them a request.
    pub fn skip_to(&mut self, address: &str, absent: &str, mut ask: impl FnMut()) {
        loop {
            let line = match self.lines.recv_timeout(Duration::from_secs(2)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    ask();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => panic!("tcpdump has ended"),
            };
            let asks_for = |address: &str| {
                line.contains(&format!("who has {address},"))
                    || line.contains(&format!("who-has {address} "))
            };
            assert!(!asks_for(absent), "{line}");
            if asks_for(address) {
                return;
            }
        }
    }
}
