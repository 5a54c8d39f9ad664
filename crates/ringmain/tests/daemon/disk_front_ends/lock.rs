//! One image, two daemons: whoever's guest runs has the image, as where a guest moves from host to
//! host.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use control::api::{Reply, Request};
use vhost::VhostBackend;
use vhost_user::blk::feature::bit;
use vhost_user_driver::WriteLog;

use super::front::{MEMORY, Running, connect, daemon, disk, eventually};

const LENGTH: u64 = 1 << 20;

fn image(folder: &Path) -> PathBuf {
    let image = folder.join("disk.raw");
    File::create(&image).unwrap().set_len(LENGTH).unwrap();
    image
}

/// Whether QEMU can write to the image: it locks what it opens, too.
fn qemu_writes(image: &Path) -> bool {
    let mut command = Command::new("qemu-io");
    let output = command.args(["-f", "raw", "-c", "write 0 512"]).arg(image).output();
    output.expect("qemu-io runs (package qemu-utils)").status.success()
}

#[test]
fn an_image_is_the_daemons_whose_guest_runs() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let [source, target] = [daemon(&[&image]), daemon(&[&image])];

    let mut here = Running::start(connect(&source, 0)).unwrap();
    here.read(&source);
    // Another program cannot have it either.
    assert!(!qemu_writes(&image));

    // The second front-end connects, and learns what the disk is like; its ring is not started.
    let refused = Running::start(connect(&target, 0));
    eventually(&target, 0, |disk| disk.reason.is_some());
    drop(refused);
    let report = disk(&target, 0);
    let reason = report.reason.unwrap();
    assert!(reason.contains("is locked: another process uses it"), "{reason}");
    assert_eq!(report.violations, 0, "the front-end did nothing wrong");
    let resize = Request::DiskResize { name: "0".into(), bytes: Some(2 * LENGTH) };
    assert!(target.client().ask(&resize).is_err(), "somebody else uses it");

    // The first guest goes on, and its image grows.
    here.read(&source);
    assert_eq!(source.client().ask(&resize).unwrap(), Reply::Done);
    drop(here);
    eventually(&source, 0, |disk| disk.peer.is_none());

    let mut there = Running::start(connect(&target, 0)).unwrap();
    there.read(&target);
    assert_eq!(disk(&target, 0).bytes, Some(2 * LENGTH), "as it is now");
    assert!(!qemu_writes(&image));
    drop(there);
    eventually(&target, 0, |disk| disk.peer.is_none());
    assert!(qemu_writes(&image));
}

/// Switches the log of written pages on or off, as a front-end that migrates its guest.
fn log(running: &mut Running, log: &WriteLog, on: bool) {
    running.front.share_log(log).unwrap();
    let features = running.front.features() | if on { bit::LOG_ALL } else { 0 };
    running.front.messages().set_features(features).unwrap();
}

#[test]
fn a_guest_that_migrates_takes_the_image_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let [source, target] = [daemon(&[&image]), daemon(&[&image])];
    let mut here = Running::start(connect(&source, 0)).unwrap();
    here.read(&source);

    // A guest that stops, as one that reboots, keeps the image.
    let base = here.front.stop(0).unwrap();
    assert!(
        Running::start(connect(&target, 0)).is_none_or(|mut there| there.front.stop(0).is_err())
    );
    here.front.start(&here.vring, base).unwrap();
    here.read(&source);

    let pages = WriteLog::new(MEMORY).unwrap();
    log(&mut here, &pages, true);
    here.read(&source);
    let base = here.front.stop(0).unwrap();
    let mut there = Running::start(connect(&target, 0)).unwrap();
    there.read(&target);

    // The migration has failed after all: the target's end goes, and the source's guest goes on.
    drop(there);
    eventually(&target, 0, |disk| disk.peer.is_none());
    log(&mut here, &pages, false);
    here.front.start(&here.vring, base).unwrap();
    here.read(&source);
    for daemon in [&source, &target] {
        assert_eq!(disk(daemon, 0).violations, 0);
    }
}
