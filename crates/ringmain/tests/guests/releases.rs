//! Front-ends and drivers of two releases: QEMU 7.2 and 10, Linux 6.1 and 6.12. Restarts of the
//! daemon and migrations with the newer ones are beside those with the older ones.

use lab::guest::{Release, Shell};

use super::lab::{Attach, Lab};
use super::traffic::{At, LIMIT, ping_both, tcp_both, udp};

/// The interrupts of an interface's queues: how many vectors there are for them, and how many of
/// these the device has used.
fn vectors(guest: &dyn Shell) -> (usize, usize) {
    let table = guest.must("cat /proc/interrupts", LIMIT).unwrap();
    let queues = table.lines().filter(|line| line.contains("put."));
    let counts: Vec<u64> = queues
        .map(|line| line.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum())
        .collect();
    (counts.len(), counts.iter().filter(|count| **count > 0).count())
}

/// Each pair of guests exchanges traffic of all kinds: a new front-end with a new driver and with
/// an old one, and an old one with an old one. Linux 6.12 does not run in the emulation of QEMU
/// 7.2, whose `cmpxchg16b` damages the flags.
#[test]
#[ignore = "boots guests"]
fn guests_of_all_releases_talk() {
    use Release::{Backports, Installed};
    let lab = Lab::new(&["", "mode = \"client\"", ""]);
    let new = Attach { emulator: Backports, kernel: Backports, ..Attach::default() };
    let packed = Attach {
        emulator: Backports,
        kernel: Installed,
        options: &["packed=on"],
        listens: true,
        ..Attach::default()
    };
    let old = Attach { emulator: Installed, kernel: Installed, ..Attach::default() };
    let [a, b, c] = lab.boot([(0, new), (1, packed), (2, old)]);
    let guests: [At<'_>; 3] = [(&a, 0), (&b, 1), (&c, 2)];
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        let (one, other) = (guests[one], guests[other]);
        ping_both(one, other, 4000);
        tcp_both(one, other, 2);
    }
    udp(&[(&a, guests[1]), (&b, guests[2]), (&c, guests[0])]);

    // Where there are vectors, each queue has its own. Frames that the host sends from one CPU of a
    // guest go to one queue, so not all are used.
    for guest in [&a, &b] {
        let (all, used) = vectors(guest);
        assert_eq!(all, 8, "{}", guest.must("cat /proc/interrupts", LIMIT).unwrap());
        assert!(used >= 3, "{used}");
    }
    // No QEMU passes UDP segmentation on to vhost-user guests.
    let features = a.must("ethtool -k eth0", LIMIT).unwrap();
    assert!(features.contains("tx-udp-segmentation: off [fixed]"), "{features}");
    assert!(features.contains("tx-tcp-segmentation: on"), "{features}");
    lab.check_balance();
}
