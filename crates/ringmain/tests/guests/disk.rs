//! Stock guests with disks of the daemon: QEMU's `vhost-user-blk-pci`, and Linux' virtio_blk and
//! ext4.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use control::api::{DiskReport, PortState, Reply, Request};
use lab::daemon::Daemon;
use lab::guest::{Accel, DiskLink, Firmware, Guest, Image, Shell, Spec, make_boot_disk};

use super::traffic::{LIMIT, eventually};

/// Length of the image: sparse, so most of it takes no space.
const LENGTH: u64 = 256 << 20;
/// Files that a guest writes, of so many MiB each.
const FILES: usize = 6;
const FILE_MIB: usize = 2;

/// A daemon with one disk, and a guest that has it.
struct Site {
    daemon: Daemon,
    guest: Guest,
    image: PathBuf,
    // The image goes with it.
    _folder: tempfile::TempDir,
}

/// What guests boot.
pub fn kernel() -> (Image, Accel) {
    let cache = lab::folders::cache(env!("CARGO_MANIFEST_DIR"));
    let kernel = Image::prepare(&cache).unwrap();
    let accel = Accel::probe(&kernel, &cache).unwrap();
    (kernel, accel)
}

impl Site {
    /// A disk that is empty.
    fn new(queues: u16, options: &[&str], keys: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk.raw");
        File::create(&image).unwrap().set_len(LENGTH).unwrap();
        let link = |socket| DiskLink {
            socket,
            queues,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        Site::start(folder, image, keys, |socket| Spec {
            disks: vec![link(socket)],
            ..Spec::new("disk")
        })
    }

    /// A disk that the guest's firmware boots from.
    fn boot(firmware: Firmware) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk.raw");
        let (kernel, accel) = kernel();
        make_boot_disk(&kernel, accel, &image).unwrap();
        let link = |socket| DiskLink { socket, queues: 2, options: vec!["bootindex=1".to_owned()] };
        Site::start(folder, image, "", |socket| Spec {
            disks: vec![link(socket)],
            memory: 512,
            firmware: Some(firmware),
            ..Spec::new("boot")
        })
    }

    /// A qcow2 disk over a raw backing file with ext4, which has a file of noise.
    fn over_a_backing_file() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let files = dir.join("files");
        std::fs::create_dir(&files).unwrap();
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(2 << 20).collect();
        std::fs::write(files.join("noise"), noise).unwrap();
        host(dir, "mke2fs -q -t ext4 -d files base.raw 64M");
        host(dir, "qemu-img create -q -f qcow2 -b base.raw -F raw disk.qcow2");
        let image = dir.join("disk.qcow2");
        let link = |socket| DiskLink { socket, queues: 2, options: Vec::new() };
        Site::start(folder, image, "format = \"qcow2\"\n", |socket| Spec {
            disks: vec![link(socket)],
            ..Spec::new("qcow2")
        })
    }

    fn start<'a>(
        folder: tempfile::TempDir,
        image: PathBuf,
        keys: &str,
        spec: impl FnOnce(PathBuf) -> Spec<'a>,
    ) -> Site {
        let table = |dir: &Path| {
            format!(
                "[workers]\ncount = 2\n[[disk]]\nname = \"root\"\nkind = \"vhost-user\"\n\
                 socket = \"{}\"\nimage = \"{}\"\nserial = \"disk-of-the-test\"\n{keys}",
                dir.join("disk.sock").display(),
                image.display()
            )
        };
        let (kernel, accel) = kernel();
        let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
        let daemon = Daemon::start(binary, table, None).unwrap();
        let spec = Spec { cpus: 2, ..spec(daemon.dir().join("disk.sock")) };
        let guest = Guest::start(&kernel, accel, &spec).unwrap();
        guest.ready(LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
        Site { daemon, guest, image, _folder: folder }
    }

    fn must(&self, command: &str) -> String {
        let done = self.guest.must(command, LIMIT);
        done.unwrap_or_else(|error| {
            panic!("{error}\n{}\n{}", self.guest.console(), self.daemon.log())
        })
    }

    fn report(&self) -> DiskReport {
        match self.daemon.client().ask(&Request::DiskShow { name: "root".into() }).unwrap() {
            Reply::Disk(disk) => *disk,
            other => panic!("{other:?}"),
        }
    }

    /// KiB that the image takes.
    fn allocated(&self) -> u64 {
        self.image.metadata().unwrap().blocks() / 2
    }

    fn resize(&self, bytes: u64) {
        let request = Request::DiskResize { name: "root".into(), bytes: Some(bytes) };
        assert_eq!(self.daemon.client().ask(&request).unwrap(), Reply::Done);
    }
}

/// Runs a command on the host.
#[track_caller]
fn host(folder: &Path, command: &str) -> String {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap_or_default());
    let output = program.current_dir(folder).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file system, files with checksums, trim, resize, and a check of everything in the end.
fn a_guest_keeps_its_files(queues: u16, options: &[&str]) {
    let site = Site::new(queues, options, "");
    assert_eq!(site.must("cat /sys/block/vda/serial"), "disk-of-the-test");
    assert_eq!(site.must("cat /sys/block/vda/cache_type").trim(), "write back");
    assert_eq!(site.must("ls /sys/block/vda/mq | wc -l").trim(), queues.min(2).to_string());
    site.must("/bin/mke2fs -q -t ext4 /dev/vda && mkdir -p /mnt && mount -t ext4 /dev/vda /mnt");
    let empty = site.allocated();
    site.must(&format!(
        "cd /mnt && for i in $(seq {FILES}); do \
         dd if=/dev/urandom of=f$i bs=64k count={} 2>/dev/null & done; wait; \
         sha256sum f* >/tmp/sums && sync && echo 3 >/proc/sys/vm/drop_caches && \
         sha256sum -c /tmp/sums",
        FILE_MIB * 16
    ));
    let full = site.allocated();
    assert!(full >= empty + (FILES * FILE_MIB) as u64 * 1024, "{empty} {full}");

    let report = site.report();
    assert_eq!((report.state, report.write_cache), (PortState::Connected, Some(true)));
    assert!(report.total.flushes > 0 && report.total.writes > 0 && report.total.reads > 0);
    assert_eq!(report.total.failed(), 0, "{report:?}");

    // What is deleted goes from the image, too.
    site.must("cd / && rm /mnt/f1 /mnt/f2 /mnt/f3 && sync && fstrim /mnt");
    assert!(site.allocated() + 2 * 1024 * FILE_MIB as u64 <= full, "{} {full}", site.allocated());

    site.resize(2 * LENGTH);
    let sectors = (2 * LENGTH / 512).to_string();
    eventually("the guest to see the new length", || {
        site.must("cat /sys/block/vda/size").trim() == sectors
    });

    // The guest switches the write cache off, and on again.
    site.must("echo 'write through' >/sys/block/vda/cache_type");
    assert_eq!(site.report().write_cache, Some(false));
    site.must("cp /mnt/f4 /mnt/g4 && sync");
    site.must("echo 'write back' >/sys/block/vda/cache_type");
    assert_eq!(site.report().write_cache, Some(true));

    site.must("umount /mnt && /bin/e2fsck -fn /dev/vda");
    site.must(
        "mount -t ext4 /dev/vda /mnt && cd /mnt && tail -n 3 /tmp/sums | sha256sum -c && cmp f4 g4",
    );
    assert_eq!(site.report().total.failed(), 0);
}

#[test]
#[ignore = "boots guests"]
fn files_are_kept_over_one_split_ring() {
    a_guest_keeps_its_files(1, &[]);
}

#[test]
#[ignore = "boots guests"]
fn files_are_kept_over_four_split_rings() {
    a_guest_keeps_its_files(4, &[]);
}

#[test]
#[ignore = "boots guests"]
fn files_are_kept_over_one_packed_ring() {
    a_guest_keeps_its_files(1, &["packed=on"]);
}

#[test]
#[ignore = "boots guests"]
fn files_are_kept_over_four_packed_rings() {
    a_guest_keeps_its_files(4, &["packed=on"]);
}

/// The guest writes and verifies without end; the daemon is killed under that, again and again.
fn a_guest_outlives_killed_daemons(options: &[&str]) {
    let mut site = Site::new(2, options, "");
    site.must("/bin/mke2fs -q -t ext4 /dev/vda && mkdir -p /mnt && mount -t ext4 /dev/vda /mnt");
    site.must("head -c 1m /dev/urandom >/tmp/noise && sha256sum </tmp/noise >/tmp/sum");
    let work = "n=0; until [ -e /tmp/stop ]; do n=$((n + 1)); \
                dd if=/tmp/noise of=/mnt/x bs=32k oflag=direct 2>/dev/null && \
                cp /tmp/noise /mnt/y$((n % 4)) && sync && \
                dd if=/mnt/x bs=64k iflag=direct 2>/dev/null | sha256sum | cmp - /tmp/sum || exit 1; \
                done; echo $n";
    let job = site.guest.spawn(work).unwrap();
    for _ in 0..4 {
        let written = |site: &Site| site.report().total.writes;
        eventually("writes", || written(&site) > 30);
        site.daemon.kill_and_start().unwrap();
    }
    eventually("writes after the last kill", || site.report().total.writes > 30);
    let report = site.report();
    assert_eq!((report.unclear_rings, report.violations), (0, 0), "{report:?}");
    site.must("touch /tmp/stop");
    let rounds = job.wait(LIMIT).unwrap();
    assert_eq!(rounds.code, 0, "{rounds:?}\n{}", site.guest.console());
    site.must("cd /mnt && for f in y*; do sha256sum <$f | cmp - /tmp/sum || exit 1; done");
    site.must("cd / && umount /mnt && /bin/e2fsck -fn /dev/vda");
    assert_eq!(site.report().total.failed(), 0);
}

#[test]
#[ignore = "boots guests"]
fn writes_over_split_rings_outlive_a_killed_daemon() {
    a_guest_outlives_killed_daemons(&[]);
}

#[test]
#[ignore = "boots guests"]
fn writes_over_packed_rings_outlive_a_killed_daemon() {
    a_guest_outlives_killed_daemons(&["packed=on"]);
}

#[test]
#[ignore = "boots guests"]
fn a_read_only_disk_stays_as_it_is() {
    let site = Site::new(1, &[], "read-only = true\n");
    assert_eq!(site.must("cat /sys/block/vda/ro").trim(), "1");
    assert_eq!(site.must("head -c 1m /dev/vda | tr -d '\\0' | wc -c").trim(), "0");
    site.must("! dd if=/dev/zero of=/dev/vda bs=512 count=1 2>/dev/null");
    assert_eq!(site.report().total.writes, 0);
}

/// The guest sees the blocks, and its kernel sends nothing that is less.
#[test]
#[ignore = "boots guests"]
fn files_are_kept_on_blocks_of_4096_bytes() {
    let site = Site::new(2, &[], "sector-size = 4096\n");
    assert_eq!(site.must("cat /sys/block/vda/queue/logical_block_size").trim(), "4096");
    assert_eq!(site.must("cat /sys/block/vda/size").trim(), (LENGTH / 512).to_string());
    site.must("/bin/mke2fs -q -t ext4 /dev/vda && mkdir -p /mnt && mount -t ext4 /dev/vda /mnt");
    site.must(
        "cd /mnt && dd if=/dev/urandom of=f bs=64k count=32 && sha256sum f >/tmp/sum && cd / && \
         umount /mnt && /bin/e2fsck -fn /dev/vda && mount -t ext4 /dev/vda /mnt && \
         cd /mnt && sha256sum -c /tmp/sum",
    );
    site.must("dd if=/dev/vda of=/dev/null count=1 bs=4096 iflag=direct 2>/dev/null");
    let total = site.report().total;
    assert!(total.writes > 0 && total.reads > 0 && total.failed() == 0, "{total:?}");
}

#[test]
#[ignore = "boots guests"]
fn files_are_kept_in_a_qcow2_image_over_its_backing_file() {
    let mut site = Site::over_a_backing_file();
    let folder = site.image.parent().unwrap().to_owned();
    let sum = host(&folder, "sha256sum base.raw files/noise");
    let noise = sum.lines().last().unwrap().split(' ').next().unwrap().to_owned();
    site.must(&format!(
        "mkdir -p /mnt && mount -t ext4 /dev/vda /mnt && cd /mnt && \
         echo '{noise}  noise' >/tmp/sum && sha256sum -c /tmp/sum"
    ));
    site.must("cd /mnt && for i in 1 2 3; do cp noise f$i && sync; done");
    let before = site.report().total.writes;
    let job =
        site.guest.spawn("cd /mnt && for i in 4 5 6 7; do cp noise f$i && sync; done").unwrap();
    eventually("writes", || site.report().total.writes > before);
    site.daemon.kill_and_start().unwrap();
    assert_eq!(job.wait(LIMIT).unwrap().code, 0);
    let full = site.allocated();
    site.must("cd /mnt && rm f6 f7 && sync && fstrim /mnt");
    eventually("space to be given back", || site.allocated() + 3 * 1024 <= full);
    // Longer than one L2 table, and than the L1 table, stand for.
    site.resize(40 << 30);
    let sectors = ((40u64 << 30) / 512).to_string();
    eventually("the guest to see the new length", || {
        site.must("cat /sys/block/vda/size").trim() == sectors
    });
    let last = "bs=1M seek=40959 count=1 conv=fsync";
    site.must(&format!("dd if=/mnt/noise of=/dev/vda {last} 2>/dev/null"));
    site.must(
        "cd / && umount /mnt && /bin/e2fsck -fn /dev/vda && mount -t ext4 /dev/vda /mnt && \
         cd /mnt && sed 's/noise/f5/' /tmp/sum | sha256sum -c && sha256sum -c /tmp/sum && \
         cd / && umount /mnt",
    );
    let report = site.report();
    assert_eq!((report.total.failed(), report.format.as_str()), (0, "qcow2"), "{report:?}");
    let Site { daemon, guest, _folder, .. } = site;
    drop((guest, daemon));
    // Only clusters that the killed daemon had ready may be lost.
    let mut check = Command::new("qemu-img");
    let check = check.current_dir(&folder).args(["check", "-q", "-f", "qcow2", "disk.qcow2"]);
    let checked = check.output().unwrap();
    assert!(matches!(checked.status.code(), Some(0 | 3)), "{checked:?}");
    let info = host(&folder, "qemu-img info --output=json disk.qcow2");
    assert!(info.contains(&format!("\"virtual-size\": {}", 40u64 << 30)), "{info}");
    assert_eq!(sum, host(&folder, "sha256sum base.raw files/noise"));
}

/// The firmware, the boot loader and the kernel each start the device anew. The firmware's driver
/// knows no flush, and writes nothing.
fn a_guest_boots(firmware: Firmware) {
    let site = Site::boot(firmware);
    assert!(site.must("cat /proc/cmdline").contains("console=ttyS0"));
    let report = site.report();
    assert!(report.total.reads > 0 && report.total.read_bytes > 8 << 20, "{report:?}");
    assert_eq!((report.total.failed(), report.violations), (0, 0), "{report:?}");
    // The disk is as it was for the guest's own driver.
    site.must("dd if=/dev/vda bs=512 count=1 2>/dev/null | tail -c 2 >/tmp/end");
    assert_eq!(site.must("od -An -tx1 /tmp/end").trim(), "55 aa");
}

#[test]
#[ignore = "boots guests"]
fn a_bios_boots_from_a_disk() {
    a_guest_boots(Firmware::SeaBios);
}

#[test]
#[ignore = "boots guests"]
fn a_uefi_firmware_boots_from_a_disk() {
    a_guest_boots(Firmware::uefi().expect("OVMF: run scripts/deps guests"));
}
