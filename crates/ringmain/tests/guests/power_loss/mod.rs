//! A stock guest with ext4 on a drive whose power is cut: after any event, and with any part of
//! what was not flushed, the file system is whole, and files are there that were synchronised.

mod drive;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use control::config::{Config, Host};
use control::daemon::Daemon;
use fastrand::Rng;
use lab::guest::{DiskLink, Guest, Shell, Spec};

use super::disk::kernel;
use super::traffic::LIMIT;
use drive::{Drive, Event, RecordingEngine};

/// Length of the disk.
const LENGTH: usize = 24 << 20;
/// Files that the guest synchronises, and bytes of each.
const FILES: usize = 10;
const BYTES: usize = 96 << 10;
/// How often the power is cut.
const CUTS: usize = 60;

/// Engines are made by a function, which has nothing but this.
static DRIVE: LazyLock<Arc<Drive>> = LazyLock::new(Arc::default);

fn content(file: usize) -> Vec<u8> {
    format!("file {file}\n").into_bytes().into_iter().cycle().take(BYTES).collect()
}

/// A guest makes a file system, and files that it synchronises, while others come and go that it
/// does not.
fn work(folder: &Path) {
    let (image, socket) = (folder.join("disk.raw"), folder.join("disk.sock"));
    // The engine does without it.
    File::create(&image).unwrap().set_len(LENGTH as u64).unwrap();
    let config = format!(
        "[workers]\ncount = 2\n[control]\nsocket = \"{}\"\n[[disk]]\nname = \"root\"\n\
         kind = \"vhost-user\"\nsocket = \"{}\"\nimage = \"{}\"\nqueues = 2\n",
        folder.join("control.sock").display(),
        socket.display(),
        image.display()
    );
    let config = Config::parse("power-loss", &config, &Host::probe().unwrap()).unwrap();
    DRIVE.reset(LENGTH);
    let engine = || Ok(Box::new(RecordingEngine::new(&DRIVE)?) as _);
    let _daemon = Daemon::start_with(&config, engine).unwrap();
    let (kernel, accel) = kernel();
    let disk = DiskLink { socket, queues: 2, options: Vec::new() };
    let spec = Spec { cpus: 2, disks: vec![disk], ..Spec::new("power") };
    let guest = Guest::start(&kernel, accel, &spec).unwrap();
    guest.ready(LIMIT).unwrap();
    let must = |command: &str| guest.must(command, LIMIT).unwrap();
    must("/bin/mke2fs -q -t ext4 -E nodiscard /dev/vda && mkdir -p /mnt && mount /dev/vda /mnt");
    let noise = "n=0; until [ -e /tmp/stop ]; do n=$((n + 1)); \
                 head -c 40000 /dev/urandom >/mnt/noise$((n % 9)) || exit 1; \
                 rm -f /mnt/noise$(((n + 5) % 9)); done";
    let noise = guest.spawn(noise).unwrap();
    for file in 0..FILES {
        must(&format!(
            "yes 'file {file}' | head -c {BYTES} | dd of=/mnt/f{file} bs=4k conv=fsync 2>/dev/null"
        ));
        DRIVE.rely(file);
    }
    must("touch /tmp/stop");
    assert_eq!(noise.wait(LIMIT).unwrap().code, 0);
    // As if the plug were pulled.
    drop(guest);
}

/// Why a disk is not as the guest may expect, which relies on these files.
fn damage(disk: &[u8], relied: &[usize]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.raw");
    std::fs::write(&image, disk).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").current_dir(folder.path());
        command.args(arguments).arg(&image).output().unwrap()
    };
    // As at each boot after a crash: the journal is replayed, and nothing else may be wrong.
    let check = run("e2fsck", &["-fp"]);
    if !matches!(check.status.code(), Some(0 | 1)) {
        return Some(format!("{check:?}"));
    }
    let dumps: String = relied.iter().map(|file| format!("dump /f{file} f{file}\n")).collect();
    std::fs::write(folder.path().join("dumps"), dumps).unwrap();
    run("debugfs", &["-f", "dumps"]);
    let is_lost = |file: &&usize| {
        let found = std::fs::read(folder.path().join(format!("f{file}")));
        found.ok() != Some(content(**file))
    };
    relied.iter().find(is_lost).map(|file| format!("file {file} is lost"))
}

/// Cuts the power again and again. Flushes are heeded among so many events. Returns the damages.
fn cut(events: &[Event], heeded: usize, cuts: usize) -> Vec<String> {
    let first = events.iter().position(|event| matches!(event, Event::Relied(_))).unwrap();
    let mut random = Rng::new();
    let damage = |_| {
        let cut = random.usize(first + 1..=events.len());
        let relied: Vec<usize> = events[..cut]
            .iter()
            .filter_map(|event| match event {
                Event::Relied(file) => Some(*file),
                _ => None,
            })
            .collect();
        let disk = DRIVE.after_cut(cut, heeded, &mut random);
        damage(&disk, &relied).map(|damage| format!("after event {cut}: {damage}"))
    };
    (0..cuts).filter_map(damage).collect()
}

#[test]
#[ignore = "boots guests"]
fn a_file_system_outlives_power_cuts() {
    let folder = tempfile::tempdir().unwrap();
    work(folder.path());
    let events = DRIVE.events();
    let flushes = events.iter().filter(|event| matches!(event, Event::Flushed(_))).count();
    assert!(flushes > FILES, "{flushes}");
    assert_eq!(cut(&events, events.len(), CUTS), Vec::<String>::new());
    // The check finds what it is there for: a drive that ignores flushes once the first file is
    // there.
    let first = events.iter().position(|event| matches!(event, Event::Relied(_))).unwrap();
    assert!(!cut(&events, first, 10).is_empty());
}
