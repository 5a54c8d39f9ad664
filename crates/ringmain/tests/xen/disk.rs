//! A stock guest's disk: Linux' xen-blkfront and ext4 on one side, `script=block-ringmain` on the
//! other.

use std::path::Path;
use std::process::Command;

use control::api::{DiskReport, PortState};
use lab::guest::Shell;
use lab::xen::{Domain, DomainSpec};

use super::host::Scene;
use super::traffic::{LIMIT, eventually};

const DISKS: &str =
    "[[disk]]\nname = \"vbds\"\nkind = \"xen\"\nimages = [\"/var/lib/xen/images\", \"/dev\"]\n";
const IMAGE: &str = "/var/lib/xen/images/a.raw";
const QCOW2: &str = "/var/lib/xen/images/b.qcow2";
/// The file behind a block device.
const DEVICE_FILE: &str = "/root/device";
/// Its number in the store: that of a device file (202 << 8 | 16).
const XVDB: u32 = 51728;
const XVDC: u32 = XVDB + 16;
/// Length of the image in MiB: sparse, so most of it takes no space.
const LENGTH: u64 = 96;

/// What `xl` is told of the disk.
fn disk(access: &str) -> String {
    format!("format=raw,vdev=xvdb,access={access},script=block-ringmain,target={IMAGE}")
}

fn report(scene: &Scene, guest: &Domain) -> Option<DiskReport> {
    report_of(scene, guest, XVDB)
}

fn report_of(scene: &Scene, guest: &Domain, device: u32) -> Option<DiskReport> {
    let name = format!("vbd{}.{device}", guest.id());
    scene.stats().disks.into_iter().find(|disk| disk.name == name)
}

/// Whether pages of the guest stay mapped for a disk.
fn is_persistent(scene: &Scene, guest: &Domain, device: u32) -> bool {
    let report = report_of(scene, guest, device).expect("the disk");
    report.features.iter().any(|feature| feature == "persistent-grants")
}

/// KiB that the image takes.
fn allocated(scene: &Scene) -> u64 {
    scene.dom0.must(&format!("du -k {IMAGE} | cut -f1"), LIMIT).unwrap().trim().parse().unwrap()
}

fn must(scene: &Scene, guest: &Domain, command: &str) -> String {
    let done = guest.must(command, LIMIT);
    done.unwrap_or_else(|error| panic!("{error}\n{}\n{}", guest.console(), scene.log()))
}

/// A daemon that serves disks, and a guest of this name that has booted with a new, empty one.
fn booted(name: &str) -> (Scene, Domain) {
    let scene = Scene::new(DISKS);
    let image = format!("mkdir -p /var/lib/xen/images && truncate -s {LENGTH}M {IMAGE}");
    scene.dom0.must(&image, LIMIT).unwrap();
    let spec = DomainSpec { disks: vec![disk("rw")], ..DomainSpec::new(name) };
    let guest = scene.dom0.create(&spec).unwrap();
    guest.ready(LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", scene.log()));
    must(&scene, &guest, "until [ -b /dev/xvdb ]; do usleep 50000; done");
    assert!(is_persistent(&scene, &guest, XVDB), "stock Linux has persistent grants");
    (scene, guest)
}

/// Runs `qemu-img` on this machine.
fn qemu_img(arguments: &[&str], image: &Path) {
    let output = Command::new("qemu-img").args(arguments).arg(image).output();
    let output = output.expect("qemu-img runs (package qemu-utils)");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// A disk with 65,536 sectors of 512 bytes comes and goes. What the guest wrote is there when it
/// comes again. The pages of its data stay mapped if they are to be `persistent`.
fn keeps_files(scene: &Scene, guest: &Domain, target: &str, sector: &str, persistent: bool) {
    let must = |command: &str| must(scene, guest, command);
    let parameter = "/sys/module/xen_blkfront/parameters/feature_persistent";
    must(&format!("echo {} >{parameter}", u8::from(persistent)));
    let attach = format!(
        "xl block-attach {} 'format=raw,vdev=xvdc,access=rw,script=block-ringmain,target={target}'",
        guest.id()
    );
    let detach = || {
        must("umount /mnt");
        scene.dom0.must(&format!("xl block-detach {} xvdc", guest.id()), LIMIT).unwrap();
        must("until ! [ -b /dev/xvdc ]; do usleep 50000; done");
    };
    scene.dom0.must(&attach, LIMIT).unwrap();
    must("until [ -b /dev/xvdc ]; do usleep 50000; done");
    assert_eq!(must("cat /sys/block/xvdc/size").trim(), "65536");
    assert_eq!(is_persistent(scene, guest, XVDC), persistent);
    assert_eq!(must("cat /sys/block/xvdc/queue/logical_block_size").trim(), sector);
    must("/bin/mke2fs -q -t ext4 /dev/xvdc && mount -t ext4 /dev/xvdc /mnt");
    must("cd /mnt && dd if=/dev/urandom of=h bs=64k count=64 && sha256sum h >/tmp/h");
    detach();
    scene.dom0.must(&attach, LIMIT).unwrap();
    must("until [ -b /dev/xvdc ]; do usleep 50000; done; mount -t ext4 /dev/xvdc /mnt");
    must("cd /mnt && sha256sum -c /tmp/h && rm h && sync");
    must("fstrim /mnt");
    detach();
}

/// On a qcow2 image, which is as qemu-img expects it afterwards.
fn keeps_files_on_qcow2(scene: &Scene, guest: &Domain) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", "size=32M"], &image);
    scene.dom0.copy(&image, QCOW2).unwrap();
    // The file is shorter: as a raw image it would be a shorter disk.
    keeps_files(scene, guest, &format!("qcow2:{QCOW2}"), "512", false);
    scene.dom0.fetch(QCOW2, &image).unwrap();
    qemu_img(&["check", "-q", "-f", "qcow2"], &image);
    scene.dom0.must(&format!("rm {QCOW2}"), LIMIT).unwrap();
}

/// On a block device of dom0 with large sectors.
fn keeps_files_on_a_block_device(scene: &Scene, guest: &Domain) {
    let make = format!(
        "modprobe loop && truncate -s 32M {DEVICE_FILE} && losetup -b 4096 --show -f {DEVICE_FILE}"
    );
    let device = scene.dom0.must(&make, LIMIT).unwrap();
    keeps_files(scene, guest, device.trim(), "4096", true);
    let remove = format!("losetup -d {} && rm {DEVICE_FILE}", device.trim());
    scene.dom0.must(&remove, LIMIT).unwrap();
}

#[test]
#[ignore = "boots Xen"]
fn a_stock_guest_keeps_its_files() {
    let (scene, guest) = booted("disk");
    let must = |command: &str| must(&scene, &guest, command);
    assert_eq!(must("cat /sys/block/xvdb/size").trim(), (LENGTH * 2048).to_string());
    assert_eq!(must("ls /sys/block/xvdb/mq | wc -l").trim(), "2");
    assert_eq!(must("cat /sys/block/xvdb/queue/write_cache").trim(), "write back");
    must("/bin/mke2fs -q -t ext4 /dev/xvdb && mkdir -p /mnt && mount -t ext4 /dev/xvdb /mnt");
    let empty = allocated(&scene);
    must(
        "cd /mnt && for i in 1 2 3 4; do \
         dd if=/dev/urandom of=f$i bs=64k count=32 2>/dev/null & done; wait; \
         sha256sum f* >/tmp/sums && cd / && umount /mnt && mount -t ext4 /dev/xvdb /mnt && \
         cd /mnt && sha256sum -c /tmp/sums",
    );
    assert!(allocated(&scene) >= empty + 4 * 2048, "{empty} {}", allocated(&scene));
    let disk = report(&scene, &guest).unwrap();
    assert_eq!((disk.state, disk.kind.as_str()), (PortState::Connected, "xen"));
    assert_eq!((disk.image.as_str(), disk.queues.len()), (IMAGE, 2), "{disk:#?}");
    assert!(disk.total.flushes > 0 && disk.total.writes > 0 && disk.total.reads > 0);
    assert_eq!((disk.total.failed(), disk.violations), (0, 0), "{disk:#?}");

    // The daemon is killed while the guest writes, and the guest does not notice.
    let writing = guest
        .spawn(
            "cd /mnt && dd if=/dev/urandom of=g bs=64k count=96 conv=fsync && sha256sum g >/tmp/g",
        )
        .unwrap();
    let before = disk.total.writes;
    eventually("writes", || {
        report(&scene, &guest).is_some_and(|now| now.total.writes > before + 8)
    });
    scene.kill();
    scene.go_on();
    writing.wait(LIMIT).unwrap().succeeded("disk", "the writer").unwrap();
    must("umount /mnt && mount -t ext4 /dev/xvdb /mnt && cd /mnt && sha256sum -c /tmp/sums /tmp/g");

    // What is deleted goes from the image, too.
    let full = allocated(&scene);
    must("rm /mnt/f1 /mnt/f2 && sync && fstrim /mnt");
    assert!(allocated(&scene) + 2048 <= full, "{} {full}", allocated(&scene));
    assert!(report(&scene, &guest).unwrap().total.discards > 0);

    let name = format!("vbd{}.{XVDB}", guest.id());
    scene.dom0.must(&format!("ringmain disk resize {name} {}M", 2 * LENGTH), LIMIT).unwrap();
    let sectors = (2 * LENGTH * 2048).to_string();
    eventually("the guest to see the new length", || {
        must("cat /sys/block/xvdb/size").trim() == sectors
    });

    must("umount /mnt && /bin/e2fsck -fn /dev/xvdb");
    scene.dom0.must(&format!("xl block-detach {} xvdb", guest.id()), LIMIT).unwrap();
    eventually("the disk to go", || report(&scene, &guest).is_none());
    must("until ! [ -b /dev/xvdb ]; do usleep 50000; done");

    // And back, read-only.
    let attach = format!("xl block-attach {} '{}'", guest.id(), self::disk("ro"));
    scene.dom0.must(&attach, LIMIT).unwrap();
    must("until [ -b /dev/xvdb ]; do usleep 50000; done; mount -t ext4 -o ro /dev/xvdb /mnt");
    must("cd /mnt && tail -n 2 /tmp/sums | sha256sum -c");
    assert_eq!(must("cat /sys/block/xvdb/ro").trim(), "1");
    must("umount /mnt");
    keeps_files_on_qcow2(&scene, &guest);
    keeps_files_on_a_block_device(&scene, &guest);
    guest.destroy().unwrap();

    // A disk whose image is missing does not come.
    let missing = DomainSpec {
        disks: vec![self::disk("rw").replace("a.raw", "missing.raw")],
        ..DomainSpec::new("missing")
    };
    let error = scene.dom0.create(&missing).unwrap_err().to_string();
    assert!(error.contains("there is no /var/lib/xen/images/missing.raw"), "{error}");
    scene.dom0.must(&format!("rm {IMAGE}"), LIMIT).unwrap();
}

/// How often the daemon is killed; the environment (`RINGMAIN_KILLS`) can say more.
const KILLS: u64 = 5;

/// A writer of the guest, with a place of its own on the disk. Each write has a number, and is read
/// back past the guest's cache before the next one.
fn writer(number: u32) -> String {
    let direct = "bs=64k count=1 status=none";
    format!(
        "n={number}; i=0; while ! [ -e /tmp/stop ]; do i=$((i + 1)); \
         yes \"writer $n write $i\" | head -c 65536 >/tmp/new$n; \
         dd if=/tmp/new$n of=/dev/xvdb seek=$n conv=notrunc oflag=direct {direct} && \
         dd if=/dev/xvdb skip=$n iflag=direct {direct} | cmp - /tmp/new$n || exit 1; \
         echo $i >/tmp/done$n; done"
    )
}

/// The daemon is killed again and again while a stock guest writes: no write fails, and none of an
/// old daemon lands on a newer one.
#[test]
#[ignore = "boots Xen"]
fn writes_of_a_stock_guest_survive_daemons_that_are_killed() {
    let kills = std::env::var("RINGMAIN_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let (scene, guest) = booted("writer");
    let must = |command: &str| must(&scene, &guest, command);
    let writers: Vec<_> = (0..4).map(|number| guest.spawn(&writer(number)).unwrap()).collect();
    for _ in 0..kills {
        // Those of this daemon.
        let writes = || report(&scene, &guest).map_or(0, |disk| disk.total.writes);
        eventually("writes", || writes() > 8);
        let disk = report(&scene, &guest).unwrap();
        assert_eq!((disk.total.failed(), disk.violations), (0, 0), "{disk:#?}");
        scene.kill();
        scene.go_on();
    }
    must("touch /tmp/stop");
    for writer in writers {
        writer.wait(LIMIT).unwrap().succeeded("writer", "a writer").unwrap();
    }
    let disk = report(&scene, &guest).unwrap();
    assert_eq!((disk.total.failed(), disk.violations), (0, 0), "{disk:#?}");
    // What each wrote last is there, and in the image.
    for number in 0..4 {
        let last = format!(
            "dd if=/dev/xvdb skip={number} bs=64k count=1 iflag=direct status=none | \
             cmp - /tmp/new{number} && sha256sum </tmp/new{number}"
        );
        let sum = format!("dd if={IMAGE} skip={number} bs=64k count=1 status=none | sha256sum");
        assert_eq!(must(&last), scene.dom0.must(&sum, LIMIT).unwrap());
    }
    guest.destroy().unwrap();
    scene.dom0.must(&format!("rm {IMAGE}"), LIMIT).unwrap();
}
