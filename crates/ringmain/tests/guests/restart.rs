//! Guests whose daemon is killed while they talk.

use control::api::Stats;
use lab::guest::Shell;

use super::lab::{Attach, Lab};
use super::traffic::{LIMIT, address, eventually, ping, stream};

/// How often the daemon is killed in each test.
const KILLS: usize = 3;

#[test]
#[ignore = "boots guests"]
fn streams_over_packed_rings_outlive_a_killed_daemon() {
    let recovered = streams_outlive_a_killed_daemon(&["packed=on"]);
    assert!(recovered.iter().all(|rings| *rings > 0), "{recovered:?}");
}

#[test]
#[ignore = "boots guests"]
fn streams_over_split_rings_outlive_a_killed_daemon() {
    streams_outlive_a_killed_daemon(&[]);
}

/// Two streams between a guest that connects to the daemon and one that the daemon connects to.
/// Returns how many rings stood elsewhere than QEMU said, after each kill.
fn streams_outlive_a_killed_daemon(options: &[&str]) -> Vec<u64> {
    let mut lab = Lab::new(&["", "mode = \"client\""]);
    let attach = Attach { queues: 2, options, ..Attach::default() };
    let [a, b] = lab.boot([(0, attach), (1, Attach { listens: true, ..attach })]);
    ping(&a, &address(1));
    for guest in [&a, &b] {
        guest.must("head -c 1m /dev/urandom >/tmp/noise", LIMIT).unwrap();
    }
    let noise = "until [ -e /tmp/stop ]; do cat /tmp/noise; done";
    let forth = stream(&a, &b, &address(1), noise);
    let back = stream(&b, &a, &address(0), noise);

    let carried = |stats: &Stats| -> u64 {
        stats.ports.iter().map(|port| port.total.rx_bytes).min().unwrap_or(0)
    };
    let enough = |lab: &Lab| {
        // Counters begin with the daemon.
        eventually("4 MiB each way", || carried(&lab.daemon.stats().unwrap()) >= 4 << 20);
    };
    enough(&lab);
    let mut recovered = Vec::new();
    for _ in 0..KILLS {
        lab.daemon.kill_and_start().unwrap();
        enough(&lab);
        let stats = lab.daemon.stats().unwrap();
        assert!(stats.ports.iter().all(|port| port.unclear_rings == 0), "{stats:#?}");
        recovered.push(stats.ports.iter().map(|port| port.recovered_rings).sum());
    }
    for guest in [&a, &b] {
        guest.must("touch /tmp/stop", LIMIT).unwrap();
    }
    forth.finish();
    back.finish();
    recovered
}
