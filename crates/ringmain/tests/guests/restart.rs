//! Guests whose daemon is killed, or taken over by a new process, while they talk.

use control::api::Stats;
use lab::guest::Release;

use super::lab::{Attach, Lab};
use super::noise::Noise;
use super::traffic::{address, eventually, ping};

/// How often the daemon is killed in each test; the environment (`RINGMAIN_KILLS`) can say more.
const KILLS: usize = 3;

/// How often it is taken over.
const TAKE_OVERS: usize = 5;

/// Of the newer QEMU and kernel.
const NEWER: Attach<'_> = Attach {
    queues: 2,
    listens: false,
    options: &["packed=on"],
    emulator: Release::Backports,
    kernel: Release::Backports,
};

/// Of the older QEMU and kernel.
const OLDER: Attach<'_> = Attach {
    queues: 2,
    listens: false,
    options: &[],
    emulator: Release::Installed,
    kernel: Release::Installed,
};

#[test]
#[ignore = "boots guests"]
fn streams_over_packed_rings_outlive_a_killed_daemon() {
    let recovered = streams_outlive_a_killed_daemon(NEWER);
    assert!(recovered.iter().all(|rings| *rings > 0), "{recovered:?}");
}

#[test]
#[ignore = "boots guests"]
fn streams_over_split_rings_outlive_a_killed_daemon() {
    streams_outlive_a_killed_daemon(OLDER);
}

#[test]
#[ignore = "boots guests"]
fn streams_go_on_over_take_overs() {
    for attach in [OLDER, NEWER] {
        under_streams(attach, |lab| {
            for _ in 0..TAKE_OVERS {
                let before = carried(&lab.daemon.stats().unwrap());
                lab.daemon.take_over().unwrap();
                eventually("4 MiB more each way", || {
                    carried(&lab.daemon.stats().unwrap()) >= before + (4 << 20)
                });
            }
            // QEMU has seen no disconnection.
            let stats = lab.daemon.stats().unwrap();
            assert!(stats.ports.iter().all(|port| port.connections == 1), "{stats:#?}");
        });
    }
}

/// Returns how many rings stood elsewhere than QEMU said, after each kill.
fn streams_outlive_a_killed_daemon(attach: Attach<'_>) -> Vec<u64> {
    let kills = std::env::var("RINGMAIN_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut recovered = Vec::new();
    under_streams(attach, |lab| {
        for _ in 0..kills {
            lab.daemon.kill_and_start().unwrap();
            // Counters begin with the daemon.
            enough(lab);
            let stats = lab.daemon.stats().unwrap();
            assert!(stats.ports.iter().all(|port| port.unclear_rings == 0), "{stats:#?}");
            recovered.push(stats.ports.iter().map(|port| port.recovered_rings).sum());
        }
    });
    recovered
}

/// Bytes that each port has got at least.
fn carried(stats: &Stats) -> u64 {
    stats.ports.iter().map(|port| port.total.rx_bytes).min().unwrap_or(0)
}

fn enough(lab: &Lab) {
    eventually("4 MiB each way", || carried(&lab.daemon.stats().unwrap()) >= 4 << 20);
}

/// Does something to the daemon under two streams between a guest that connects to it and one that
/// it connects to. All that was sent has to arrive.
fn under_streams(attach: Attach<'_>, work: impl FnOnce(&mut Lab)) {
    let mut lab = Lab::new(&["", "mode = \"client\""]);
    let [a, b] = lab.boot([(0, attach), (1, Attach { listens: true, ..attach })]);
    ping(&a, &address(1));
    let noise = Noise::start([&a, &b]);
    enough(&lab);
    work(&mut lab);
    noise.finish();
}
