//! What came over the wire, as a program that nobody here wrote has recorded and reads it.

use std::process::{Command, Stdio};
use std::time::Duration;

use lab::guest::{ChildProcess, Namespace};

/// Has `tcpdump` keep what comes to the other host.
pub fn record(theirs: &Namespace, file: &str) -> ChildProcess {
    let mut tcpdump = theirs.command("tcpdump");
    tcpdump.args(["-i", "e0", "-n", "-U", "-c", "4000", "-Z", "root", "-w", file]);
    let tcpdump = ChildProcess::start(tcpdump.stderr(Stdio::null())).unwrap();
    while !std::fs::metadata(file).is_ok_and(|file| file.len() > 0) {
        std::thread::sleep(Duration::from_millis(10));
    }
    tcpdump
}

/// The recorded datagrams that `tshark` finds for an expression, with all checksums checked.
pub fn found(file: &str, expression: &str) -> Vec<String> {
    let checks = ["ip", "udp", "tcp"].map(|name| format!("{name}.check_checksum:TRUE"));
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r", file, "-Y", expression]);
    // What iperf sends is no message of the protocol that its client's port may be known for.
    tshark.args(["-d", "tcp.port==5001,data"]);
    checks.iter().for_each(|check| {
        tshark.args(["-o", check]);
    });
    let done = tshark.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect()
}
