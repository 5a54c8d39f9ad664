//! Traffic between guests that shows damage, not speed.

use lab::guest::{Deadline, GuestError, Job, Shell};
use std::time::{Duration, Instant};

/// Longest boot and longest command. Time in which the machine was busy otherwise does not count.
pub const LIMIT: Duration = Duration::from_secs(180);

/// A shell's command that returns what a connection sends, after all of it came. One that returns
/// while it receives can wait for ever: busybox's nc writes and reads by turns, so both ends can be
/// writing to each other.
pub const RETURN: &str = "f=/tmp/returned.$$; cat >$f; cat $f; rm $f";

/// A guest and the number of its port.
pub type At<'a> = (&'a dyn Shell, usize);

/// The guest's IPv4 address on a port.
pub fn address(port: usize) -> String {
    format!("10.77.0.{}", port + 1)
}

/// The guest's IPv6 address on a port.
pub fn address6(port: usize) -> String {
    format!("fd77::{}", port + 1)
}

/// Gives a guest that has just come up, or got this interface, the addresses of a port.
pub fn address_it(guest: &dyn Shell, interface: &str, port: usize) {
    let (v4, v6) = (address(port), address6(port));
    // Duplicate addresses cannot be, and looking for them takes a second.
    guest
        .must(
            &format!(
                "echo 0 >/proc/sys/net/ipv6/conf/{interface}/accept_dad
                ip addr add {v4}/24 dev {interface} && ip addr add {v6}/64 dev {interface} && ip link set {interface} up"
            ),
            LIMIT,
        )
        .unwrap();
}

/// Waits until an address answers.
pub fn ping(from: &dyn Shell, address: &str) {
    from.must(
        &format!("for try in $(seq 60); do ping -c 1 -w 2 {address} && exit; done; false"),
        LIMIT,
    )
    .unwrap();
}

/// Pings both ways, one after the other, with packets from small to `largest` bytes (of IP
/// payload), over IPv4 and IPv6.
///
/// At the same time would be faster. But the socket of a ping gets the requests of the other guest,
/// too, and has no room for the answer besides a large one while its process waits for a CPU.
pub fn ping_both(a: At<'_>, b: At<'_>, largest: u16) {
    // Each command costs an emulated guest more than a ping does: one for all. And each ping asks
    // once: after the first answer, busybox waits no more than a second for the next, which is
    // not long on a busy machine.
    for (from, to) in [(a.0, b.1), (b.0, a.1)] {
        let (v4, v6, largest) = (address(to), address6(to), largest - 8);
        let pings = format!(
            "for address in {v4} {v6}; do
            for try in $(seq 60); do ping -c 1 -w 2 $address && break; done
            for size in 0 0 18 18 1400 1400 {largest} {largest}; do ping -c 1 -W 60 -s $size $address || exit; done
            done"
        );
        from.must(&pings, LIMIT).unwrap();
    }
}

/// Sends megabytes of noise over TCP, both ways at the same time, and compares what arrived.
pub fn tcp_both(a: At<'_>, b: At<'_>, megabytes: u32) {
    for at in [address, address6] {
        let forth = transfer(a.0, b.0, &at(b.1), megabytes);
        let back = transfer(b.0, a.0, &at(a.1), megabytes);
        // Where one of the guests may die, it is `b`: who waits for it learns that at once.
        back.finish();
        forth.finish();
    }
}

/// A sender, and the receiver of its frames.
pub type Flow<'a> = (&'a dyn Shell, At<'a>);

/// Ports that datagrams of each size are sent to.
const UDP_PORTS: [u16; 2] = [5001, 5002];

/// Sizes of datagrams, of which one takes fragments, and how many are sent, in all and in a second.
const DATAGRAMS: [(u32, u32, u32); 2] = [(1400, 200, 40), (12_000, 100, 20)];

/// Sends datagrams of all sizes over all flows at the same time, so slowly that a receiver that is
/// not let run for a second has buffers for what comes meanwhile, and a socket with room for all of
/// it.
pub fn udp(flows: &[Flow<'_>]) {
    let mut servers = Vec::new();
    for (_, to) in flows {
        to.0.must("echo 16777216 >/proc/sys/net/core/rmem_max", LIMIT).unwrap();
        for port in UDP_PORTS {
            servers.push(to.0.spawn(&format!("iperf -s -u -p {port} -w 8M")).unwrap());
        }
    }
    for (_, to) in flows {
        UDP_PORTS.iter().for_each(|&port| listens(to.0, "netstat -lun", port));
    }
    let mut clients = Vec::new();
    for (from, to) in flows {
        for ((size, count, per_second), port) in DATAGRAMS.into_iter().zip(UDP_PORTS) {
            let (address, bytes, rate) = (address(to.1), count * size, per_second * size * 8);
            let send = format!("iperf -u -c {address} -p {port} -l {size} -n {bytes} -b {rate}");
            clients.push((count, from.spawn(&send).unwrap()));
        }
    }
    for (count, client) in clients {
        let sent = client.wait(LIMIT).unwrap();
        assert_eq!(sent.code, 0, "{}", sent.text);
        let report = loss(&sent.text);
        let (lost, total) = report.unwrap_or_else(|| panic!("no report in {}", sent.text));
        assert!(total >= count && lost * 10 < total, "{}", sent.text);
    }
    for server in servers {
        server.stop(LIMIT).unwrap();
    }
}

/// Lost and sent datagrams, out of the server's report: "... 0.035 ms 0/201 (0%)".
fn loss(report: &str) -> Option<(u32, u32)> {
    let line = report.lines().rev().find(|line| line.contains(" ms "))?;
    let ratio = line
        .split_whitespace()
        .find(|word| word.contains('/') && word.starts_with(|c: char| c.is_ascii_digit()))?;
    let (lost, total) = ratio.split_once('/')?;
    Some((lost.parse().ok()?, total.parse().ok()?))
}

/// A stream that is on its way.
pub struct Stream {
    sender: Job,
    receiver: Job,
}

/// Starts a stream over TCP. `send` is a shell's command that sends to port 5000 of the receiver,
/// and then prints the MD5 sum of what it sent.
pub fn stream(from: &dyn Shell, to: &dyn Shell, send: &str) -> Stream {
    // What sums up reads from the connection itself: nc would copy a kilobyte at a time.
    let receiver =
        to.spawn("nc -l -p 5000 -e sh -c 'md5sum >/tmp/received' && cat /tmp/received").unwrap();
    listens(to, "netstat -ltn", 5000);
    Stream { sender: from.spawn(send).unwrap(), receiver }
}

/// Ends streams that go on until `/tmp/stop` exists. All that was sent has to arrive.
pub fn finish(guests: [&dyn Shell; 2], streams: [Stream; 2]) {
    for guest in guests {
        guest.must("touch /tmp/stop", LIMIT).unwrap();
    }
    streams.into_iter().for_each(Stream::finish);
}

/// Starts to send megabytes of noise.
fn transfer(from: &dyn Shell, to: &dyn Shell, address: &str, megabytes: u32) -> Stream {
    let send = format!(
        "head -c {megabytes}m /dev/urandom >/tmp/sent
        nc {address} 5000 -e cat /tmp/sent || exit 1
        md5sum </tmp/sent; rm /tmp/sent"
    );
    stream(from, to, &send)
}

/// Ends what a test left running in a guest, and removes its files.
pub fn clean(guest: &dyn Shell) -> Result<String, GuestError> {
    guest.must(
        "killall -q -9 iperf nc cat md5sum ping
        cd /tmp && rm -f stop noise copy sum pieces sent received",
        LIMIT,
    )
}

/// Waits until something is so. What looks may do so on the processors that are to make it so, and
/// leaves them twice as much time as it took.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut deadline = Deadline::new(LIMIT);
    loop {
        let start = Instant::now();
        if is_so() {
            return;
        }
        assert!(!deadline.is_over(), "waited in vain for {what}");
        std::thread::sleep((2 * start.elapsed()).max(Duration::from_millis(100)));
    }
}

/// Waits until a guest listens on a port.
pub fn listens(guest: &dyn Shell, netstat: &str, port: u16) {
    guest
        .must(&format!("until {netstat} | grep -q ':{port} '; do sleep 0.05; done"), LIMIT)
        .unwrap();
}

impl Stream {
    /// Waits for its end; what was received must be what was sent.
    pub fn finish(self) {
        let sent = self.sender.wait(LIMIT).unwrap();
        assert_eq!(sent.code, 0, "{}", sent.text);
        let received = self.receiver.wait(LIMIT).unwrap();
        assert_eq!(received, sent);
    }
}
