//! A TAP port: guests reach the host. The host is a network namespace here.

use super::lab::{Attach, Lab, socket};
use super::traffic::{LIMIT, RETURN, address, listens, ping};
use lab::guest::{ChildProcess, Namespace, Shell};
use std::process::Stdio;

const HOST: &str = "10.77.0.100";

#[test]
#[ignore = "boots guests"]
fn guest_and_host_reach_each_other() {
    let network = Namespace::new().unwrap();
    // The TAP is there before the daemon, with its place in a bridge.
    network
        .ip(&format!(
            "tuntap add dev rm0 mode tap multi_queue\nlink add br0 type bridge\n\
             link set rm0 master br0\nlink set br0 up\nlink set rm0 up\naddr add {HOST}/24 dev br0"
        ))
        .unwrap();
    let mut lab = Lab::start(Some(network), |dir| {
        format!(
            "[[port]]\nname = \"guest-0\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 4\n\
             [[port]]\nname = \"uplink\"\nkind = \"tap\"\ndevice = \"rm0\"\nqueues = 2\n",
            socket(dir, 0).display()
        )
    });
    let host = lab.namespace.as_ref().unwrap();
    let [guest] = lab.boot([(0, Attach::default())]);

    ping(&guest, HOST);
    guest.must(&format!("ping -c 1 -W 60 -s 8000 {HOST}"), LIMIT).unwrap();

    // Noise from the guest to the host and back again, over TCP: what returns must be what went.
    let mut command = host.command("busybox");
    command.args(["nc", "-ll", "-p", "5000", "-e", "sh", "-c", RETURN]).stdin(Stdio::null());
    let echo = ChildProcess::start(&mut command).unwrap();
    let compare = format!(
        "head -c 8m /dev/urandom >/tmp/noise
        until echo ready | nc {HOST} 5000 | grep -q ready; do sleep 0.1; done
        nc {HOST} 5000 </tmp/noise | cmp - /tmp/noise"
    );
    guest.must(&compare, LIMIT).unwrap();
    drop(echo);

    // And a connection that the host begins.
    guest.spawn("nc -ll -p 5000 -e cat").unwrap();
    listens(&guest, "netstat -ltn", 5000);
    host.run("sh", ["-c", &format!("for try in $(seq 100); do echo hello | busybox nc {} 5000 | grep hello && exit; sleep 0.1; done; false", address(0))])
        .unwrap();
    lab.check_balance();

    // It keeps its place when the daemon is killed, and serves the next one.
    let before = host_links(&lab);
    assert!(before.contains("rm0") && before.contains("master br0"), "{before}");
    lab.daemon.kill_and_start().unwrap();
    ping(&guest, HOST);
    assert_eq!(host_links(&lab), before);
}

/// The members of bridges in the host's network.
fn host_links(lab: &Lab) -> String {
    lab.namespace.as_ref().unwrap().run("bridge", ["link", "show"]).unwrap()
}
