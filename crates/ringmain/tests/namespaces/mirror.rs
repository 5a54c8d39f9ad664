//! A mirror whose copies tcpdump takes from a TAP. Needs root.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::capture::{run, tshark};
use super::uplink::leave_host;
use super::{ChildGuard, Site, succeeds, wait};

const PROBE: &str = "[[port]]\nname = \"probe\"\nkind = \"tap\"\ndevice = \"rm-probe\"\n";

/// What tells frames of a file apart, in order.
fn frames(file: &str) -> Vec<String> {
    let fields = ["frame.len", "ip.src", "ip.id", "tcp.seq_raw", "tcp.ack_raw", "udp.length"];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let args: Vec<&str> = ["-Y", "ip", "-T", "fields"].into_iter().chain(fields).collect();
    let mut lines: Vec<String> = tshark(file, &args).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn counts(site: &Site, port: &str) -> Value {
    let json = site.ask(&["port", "show", port, "--json"]).unwrap();
    serde_json::from_str::<Value>(&json).unwrap()["total"].take()
}

/// Starts tcpdump on the TAP, and waits until it sees frames.
fn tcpdump(file: &str) -> ChildGuard {
    let mut command = Command::new("tcpdump");
    command.args(["-i", "rm-probe", "-n", "-U", "-B", "65536", "-Z", "root", "-w", file]);
    let tcpdump = ChildGuard(command.stderr(Stdio::null()).spawn().unwrap());
    // The header of the file is written when the socket is open.
    wait(|| std::fs::metadata(file).is_ok_and(|file| file.len() > 0));
    tcpdump
}

#[test]
#[ignore = "needs namespaces, tcpdump and tshark"]
fn a_mirror_has_what_a_capture_has() {
    leave_host();
    let site = Site::with(PROBE);
    std::fs::write("/proc/sys/net/ipv6/conf/rm-probe/disable_ipv6", "1").unwrap();
    run("ip", &["link", "set", "rm-probe", "up"]);
    let _server = site.server(2);
    // As a change in service: the server has it when the command ends.
    site.ask(&["port", "set", "guests", "mirror=probe"]).unwrap();
    let (seen, captured) = (site.path("probe.pcap"), site.path("server.pcapng"));
    let (seen, captured) = (seen.to_str().unwrap(), captured.to_str().unwrap());
    let _tcpdump = tcpdump(seen);
    let mut capture = site.capture(&["guests/server", "-w", captured], Stdio::null());
    succeeds(site.guest("client", "10.9.0.2", 2, "mix 10.9.0.1"));
    capture.interrupt();
    let [number, lost] = capture.end();
    assert!(number > 20 && lost == 0, "{number} captured, {lost} lost");
    let want = frames(captured);
    wait(|| frames(seen).len() >= want.len());
    assert_eq!(frames(seen), want);
    // The probe got copies only, and each frame is accounted for.
    let (probe, server) = (counts(&site, "probe"), counts(&site, "guests/server"));
    assert!(probe["rx_frames"].as_u64().unwrap() >= want.len() as u64, "{probe}");
    assert_eq!(server["drops"]["mirror_full"], 0, "{server}");
}

#[test]
#[ignore = "needs namespaces"]
fn a_reload_changes_mirrors_in_service() {
    leave_host();
    let site = Site::with(PROBE);
    let _server = site.server(1);
    let shown = || site.ask(&["port", "show", "guests/server"]).unwrap();
    let file = site.path("ringmain.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!shown().contains("\nmirror "), "{}", shown());
    std::fs::write(&file, text.replace("queues = 4", "queues = 4\nmirror = \"probe\"")).unwrap();
    let said = site.ask(&["reload"]).unwrap();
    assert!(said.contains("set port guests: mirror"), "{said}");
    assert!(shown().contains("mirror       probe"), "{}", shown());
    std::fs::write(&file, text.replace("queues = 4", "queues = 4\nmirror = \"prob\"")).unwrap();
    assert!(site.ask(&["reload"]).is_none(), "there is no such port");
    std::fs::write(&file, &text).unwrap();
    site.ask(&["reload"]).unwrap();
    assert!(!shown().contains("\nmirror "), "{}", shown());
    for wrong in ["guests", "prob", "server"] {
        assert!(site.ask(&["port", "set", "guests", &format!("mirror={wrong}")]).is_none());
    }
}
