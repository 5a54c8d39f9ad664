//! Guests that come and go while others stay.

use super::lab::Attach;
use super::pool::{CLIENT_PORT, FREE_PORT, SharedLab};
use super::traffic::{LIMIT, address, address_it, listens, ping, ping_both, tcp_both};
use lab::guest::{GuestError, Job, Shell};

/// Starts a stream to the guest on a port, and waits until a megabyte of it has arrived: the sender
/// and the receiver.
fn endless_stream(from: &dyn Shell, to: &dyn Shell, port: usize) -> [Job; 2] {
    let server = to.spawn("iperf -s").unwrap();
    listens(to, "netstat -ltn", 5001);
    let received = "$(cat /sys/class/net/eth0/statistics/rx_bytes)";
    let before = to.must(&format!("echo {received}"), LIMIT).unwrap();
    let stream = from.spawn(&format!("iperf -c {} -t 1000", address(port))).unwrap();
    let wanted = before.trim().parse::<u64>().unwrap() + (1 << 20);
    to.must(&format!("until [ {received} -ge {wanted} ]; do usleep 50000; done"), LIMIT).unwrap();
    [stream, server]
}

#[test]
#[ignore = "boots guests"]
fn a_guest_is_reset_then_killed_and_its_socket_taken_again() {
    let lab = SharedLab::new();
    let [b, c] = lab.guests();
    let [a] = lab.boot([(FREE_PORT, Attach::default())]);
    tcp_both((&a, FREE_PORT), (b, 0), 2);

    // Two guests talk all the time, and must not notice what happens to the third.
    let bystanders = b
        .spawn(&format!(
            "until [ -e /tmp/stop ]; do ping -c 1 -w 60 {} || exit 1; done",
            address(1)
        ))
        .unwrap();

    // Reset in the middle of a stream.
    let [stream, server] = endless_stream(b, &a, FREE_PORT);
    a.reset(LIMIT).unwrap();
    assert!(matches!(server.wait(LIMIT), Err(GuestError::Restarted { .. })));
    stream.stop(LIMIT).unwrap();
    address_it(&a, "eth0", FREE_PORT);
    ping(&a, &address(0));
    tcp_both((&a, FREE_PORT), (b, 0), 2);

    // Killed in the middle of a stream.
    let [stream, server] = endless_stream(&a, c, 1);
    drop((stream, a));
    server.stop(LIMIT).unwrap();
    let [a] = lab.boot([(FREE_PORT, Attach::default())]);
    ping_both((&a, FREE_PORT), (c, 1), 2000);
    tcp_both((&a, FREE_PORT), (c, 1), 2);

    b.must("touch /tmp/stop", LIMIT).unwrap();
    let bystanders = bystanders.wait(LIMIT).unwrap();
    assert_eq!(bystanders.code, 0, "{}", bystanders.text);
    lab.check_balance();
}

#[test]
#[ignore = "boots guests"]
fn a_port_that_connects_to_qemu_takes_one_guest_after_the_other() {
    let lab = SharedLab::new();
    let b = lab.guests()[1];
    let listens = Attach { listens: true, ..Attach::default() };
    let [a] = lab.boot([(CLIENT_PORT, listens)]);
    tcp_both((&a, CLIENT_PORT), (b, 1), 2);
    drop(a);
    let [a] = lab.boot([(CLIENT_PORT, listens)]);
    ping(&a, &address(1));
    tcp_both((&a, CLIENT_PORT), (b, 1), 2);
    lab.check_balance();
}
