//! Guests with a disk that migrate between two daemons, which serve the same image, as two hosts
//! with a file system that they share would.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use control::api::{DiskReport, Reply, Request};
use lab::daemon::Daemon;
use lab::guest::{Accel, DiskLink, Guest, Image, Shell, Spec};

use super::disk::kernel;
use super::traffic::{LIMIT, eventually};

const LENGTH: u64 = 64 << 20;

/// How often the guest goes to the other daemon while it writes.
const MIGRATIONS: usize = 4;

/// Writes noise and reads it back, past the page cache and through a file system, until the disk
/// becomes longer. Then checks everything, and writes a word behind the former end of the disk. The
/// channel to the guest's shell does not migrate.
const WORK: &str = "size=$(cat /sys/block/vda/size); n=0; \
     while [ $(cat /sys/block/vda/size) = $size ]; do n=$((n + 1)); \
     dd if=/tmp/noise of=/mnt/x bs=32k oflag=direct 2>/dev/null && \
     cp /tmp/noise /mnt/y$((n % 4)) && sync && \
     dd if=/mnt/x bs=64k iflag=direct 2>/dev/null | sha256sum | cmp - /tmp/sum || exit 1; \
     done; \
     for f in /mnt/y*; do sha256sum <$f | cmp - /tmp/sum || exit 1; done; \
     umount /mnt && /bin/e2fsck -fn /dev/vda && \
     echo good | dd of=/dev/vda bs=512 seek=$size conv=sync,fsync";

struct Hosts {
    daemons: [Daemon; 2],
    kernel: Image,
    accel: Accel,
    options: &'static [&'static str],
}

impl Hosts {
    fn start(image: &Path, options: &'static [&'static str]) -> Hosts {
        let config = |dir: &Path| {
            format!(
                "[workers]\ncount = 2\n[[disk]]\nname = \"root\"\nkind = \"vhost-user\"\n\
                 socket = \"{}\"\nimage = \"{}\"\n",
                dir.join("disk.sock").display(),
                image.display()
            )
        };
        let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
        let daemons = [(); 2].map(|()| Daemon::start(binary, config, None).unwrap());
        let (kernel, accel) = kernel();
        Hosts { daemons, kernel, accel, options }
    }

    /// Starts QEMU at one of the daemons; where the guest is not to boot, QEMU waits at `incoming`.
    fn guest(&self, at: usize, incoming: Option<PathBuf>) -> Guest {
        let disk = DiskLink {
            socket: self.daemons[at].dir().join("disk.sock"),
            queues: 2,
            options: self.options.iter().map(|option| (*option).to_owned()).collect(),
        };
        let spec = Spec { cpus: 2, disks: vec![disk], incoming, ..Spec::new("disk") };
        Guest::start(&self.kernel, self.accel, &spec).unwrap()
    }

    fn report(&self, at: usize) -> DiskReport {
        match self.daemons[at].client().ask(&Request::DiskShow { name: "root".into() }).unwrap() {
            Reply::Disk(disk) => *disk,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the guest has written more by way of one of the daemons.
    fn writes_on(&self, at: usize) {
        let before = self.report(at).total.writes;
        eventually("writes", || self.report(at).total.writes > before + 30);
    }
}

fn files_outlive_migrations(options: &'static [&'static str]) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.raw");
    File::create(&image).unwrap().set_len(LENGTH).unwrap();
    let hosts = Hosts::start(&image, options);
    let mut guest = hosts.guest(0, None);
    guest.ready(LIMIT).unwrap();
    guest
        .must(
            "/bin/mke2fs -q -t ext4 /dev/vda && mkdir -p /mnt && mount -t ext4 /dev/vda /mnt && \
         head -c 1m /dev/urandom >/tmp/noise && sha256sum </tmp/noise >/tmp/sum",
            LIMIT,
        )
        .unwrap();
    guest.spawn(WORK).unwrap();
    for round in 1..=MIGRATIONS {
        let (from, to) = ((round + 1) % 2, round % 2);
        hosts.writes_on(from);
        let incoming = hosts.daemons[to].dir().join("incoming.sock");
        let target = hosts.guest(to, Some(incoming.clone()));
        guest.migrate(&target, &incoming, LIMIT).unwrap();
        drop(guest);
        target.arrived(LIMIT).unwrap();
        let _ = std::fs::remove_file(&incoming);
        guest = target;
        hosts.writes_on(to);
    }
    let longer = Request::DiskResize { name: "root".into(), bytes: Some(2 * LENGTH) };
    let client = hosts.daemons[MIGRATIONS % 2].client();
    assert_eq!(client.ask(&longer).unwrap(), Reply::Done);
    let image = File::open(&image).unwrap();
    eventually("the guest to find everything as it should be", || {
        let mut word = [0; 5];
        image.read_exact_at(&mut word, LENGTH).unwrap();
        word == *b"good\n"
    });
    for at in 0..2 {
        let report = hosts.report(at);
        assert_eq!((report.total.failed(), report.violations), (0, 0), "{report:?}");
    }
}

#[test]
#[ignore = "boots guests"]
fn files_outlive_migrations_over_split_rings() {
    files_outlive_migrations(&[]);
}

#[test]
#[ignore = "boots guests"]
fn files_outlive_migrations_over_packed_rings() {
    files_outlive_migrations(&["packed=on"]);
}
