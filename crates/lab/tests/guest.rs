//! A real guest, its command channel, and its disks. Needs root and `scripts/deps guests disks`;
//! run by `make test`.

mod common;

use lab::guest::{Accel, Guest, GuestError, Image, Output, Shell, Spec};
use std::path::Path;
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(60);

fn boot(name: &str) -> Guest {
    let cache = lab::folders::cache(env!("CARGO_MANIFEST_DIR"));
    let image = Image::prepare(&cache).unwrap();
    let accel = Accel::probe(&image, &cache).unwrap();
    let guest = Guest::start(&image, accel, &Spec { cpus: 2, ..Spec::new(name) }).unwrap();
    guest.ready(BOOT).unwrap();
    guest
}

#[test]
#[ignore = "boots a guest"]
fn commands_run_side_by_side_and_survive_a_reset() {
    let guest = boot("channel");
    assert_eq!(
        guest.run("echo out; echo err >&2; exit 3", LIMIT).unwrap(),
        Output { code: 3, text: "out\nerr\n".into() }
    );

    let slow = guest.spawn("sleep 1; echo slow").unwrap();
    let jobs: Vec<_> =
        (0..8).map(|i| guest.spawn(&format!("seq {i} 2000; exit {i}")).unwrap()).collect();
    for (i, job) in (0..).zip(jobs) {
        let wanted: String = (i..=2000).map(|n| format!("{n}\n")).collect();
        assert_eq!(job.wait(LIMIT).unwrap(), Output { code: i, text: wanted });
    }
    assert_eq!(slow.wait(LIMIT).unwrap().text, "slow\n");

    // Killed with its children, by the host or because it took too long.
    assert_eq!(guest.spawn("sleep 1000 | cat").unwrap().stop(LIMIT).unwrap().code, 137);
    assert!(matches!(guest.run("sleep 1000", Duration::ZERO), Err(GuestError::Late { .. })));
    guest.must("while pidof sleep; do usleep 50000; done", LIMIT).unwrap();

    for program in ["iperf -v", "ethtool --version"] {
        guest.run(program, LIMIT).unwrap();
    }
    assert!(guest.must("lsmod", LIMIT).unwrap().contains("virtio_net"));

    let cut_off = guest.spawn("sleep 1000").unwrap();
    guest.reset(BOOT).unwrap();
    assert!(matches!(cut_off.wait(LIMIT), Err(GuestError::Restarted { .. })));
    assert_eq!(guest.must("pidof sleep || echo fresh", LIMIT).unwrap(), "fresh\n");

    let process = format!("/proc/{}", guest.id());
    drop(guest);
    assert!(!Path::new(&process).exists());
}

/// fio in a stock guest finds on each disk what it has written there.
#[test]
#[ignore = "boots a guest"]
fn fio_verifies_disks_of_a_stock_guest() {
    let out = tempfile::tempdir().unwrap();
    let args = ["demo-disk", "--seconds", "0.2", "--size", "16"];
    let said = common::lab().args(args).arg("--out").arg(out.path()).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let table = String::from_utf8(said.stdout).unwrap();
    let rows = table.lines().filter(|line| line.contains("random") || line.contains("serial"));
    assert_eq!(rows.count(), 12, "{table}");
    assert!(table.contains("over 3 disks"), "{table}");
    assert!(out.path().join("report.html").exists());
}
