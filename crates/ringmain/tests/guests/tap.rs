//! A TAP port: guests reach the host. The host is a network namespace here.

use super::lab::{Attach, Lab, socket};
use super::traffic::{LIMIT, address, ping};
use lab::guest::{ChildProcess, Namespace, Shell};
use std::process::Stdio;

const HOST: &str = "10.77.0.100";

#[test]
#[ignore = "boots guests"]
fn guest_and_host_reach_each_other() {
    let lab = Lab::start(Some(Namespace::new().unwrap()), |dir| {
        format!(
            "[[port]]\nname = \"guest-0\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 4\n\
             [[port]]\nname = \"uplink\"\nkind = \"tap\"\ndevice = \"rm0\"\nqueues = 2\n",
            socket(dir, 0).display()
        )
    });
    let host = lab.namespace.as_ref().unwrap();
    host.ip(&format!("addr add {HOST}/24 dev rm0\nlink set rm0 up")).unwrap();
    let [guest] = lab.boot([(0, Attach::default())]);

    ping(&guest, HOST);
    guest.must(&format!("ping -c 1 -W 60 -s 8000 {HOST}"), LIMIT).unwrap();

    // Noise from the guest to the host and back again, over TCP: what returns must be what went.
    let mut command = host.command("busybox");
    command.args(["nc", "-ll", "-p", "5000", "-e", "cat"]).stdin(Stdio::null());
    let echo = ChildProcess::start(&mut command).unwrap();
    let compare = format!(
        "head -c 8m /dev/urandom >/tmp/noise
        for try in $(seq 100); do echo ready | nc {HOST} 5000 | grep -q ready && break; sleep 0.1; done
        nc {HOST} 5000 </tmp/noise | cmp - /tmp/noise"
    );
    guest.must(&compare, LIMIT).unwrap();
    drop(echo);

    // And a connection that the host begins.
    guest.spawn("nc -ll -p 5000 -e cat").unwrap();
    host.run("sh", ["-c", &format!("for try in $(seq 100); do echo hello | busybox nc {} 5000 | grep hello && exit; sleep 0.1; done; false", address(0))])
        .unwrap();
    lab.check_balance();
}
