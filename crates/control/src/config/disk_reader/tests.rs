use network::token_bucket::Rate;
use storage::image::Direct;

use super::*;
use crate::config::{Config, Host, disk_changes};

const DISK: &str =
    "[[disk]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/run/a\"\nimage = \"/i\"\n";

fn parse_disks(text: &str) -> Result<Vec<DiskSpec>, String> {
    let config = Config::parse("f", text, &Host { cpus: vec![0] });
    config.map(|config| config.disks).map_err(|errors| errors.to_string())
}

#[test]
fn a_disk_has_defaults() {
    let disk = parse_disks(DISK).unwrap().remove(0);
    assert_eq!((disk.queues, disk.read_only, disk.direct), (16, false, Direct::Auto));
    assert_eq!((disk.serial.as_str(), disk.policy), ("a", None));
    let all = "queues = 4\nread-only = true\ndirect = \"off\"\nserial = \"x y\"\n\
               socket-mode = \"660\"\npolling = \"eco\"\nformat = \"raw\"\n\
               sector-size = 4096\niops = 500\nbandwidth = \"200MB\"\nbandwidth-burst = \"4MiB\"\n\
               memory = \"2GiB\"\n";
    let disk = parse_disks(&format!("{DISK}{all}")).unwrap().remove(0);
    assert_eq!((disk.queues, disk.read_only, disk.direct), (4, true, Direct::Never));
    assert_eq!(disk.image_options().sector_size, Some(4096));
    assert_eq!(disk.settings.memory_limit(), 2 << 30);
    let rates = disk.settings.limits.rates();
    assert_eq!(rates.requests, Some(Rate { per_second: 500, burst: 128 }));
    assert_eq!(rates.bytes, Some(Rate { per_second: 200_000_000, burst: 4 << 20 }));
    let again = DiskSpec::from_request(&disk.to_request(), &[], Vec::new()).unwrap();
    assert_eq!(again, disk);
}

#[test]
fn mistakes_are_named() {
    let cases = [
        ("serial = \"123456789012345678901\"", "cannot be a serial number"),
        ("format = \"vhd\"", "is not a format of images; give \"raw\" or \"qcow2\""),
        ("direct = \"maybe\"", "give \"auto\", \"on\" or \"off\""),
        ("queues = 0", "out of range"),
        ("sector-size = 1024", "1024 is out of range; give 512 or 4096"),
        ("sector-size = 8192", "8192 is out of range; give 512 or 4096"),
        ("read-only = 1", "is not a boolean"),
        ("iops = \"20K\"", "write \"20k\""),
        ("bandwidth = \"200Mbit\"", "write \"25MB\""),
        ("iops-burst = 5", "disk[0].iops-burst: a burst is of a rate; give iops, too"),
        ("imgae = \"x\"", "did you mean \"image\"?"),
    ];
    for (line, want) in cases {
        let error = parse_disks(&format!("{DISK}{line}\n")).unwrap_err();
        assert!(error.contains(want), "{error}");
    }
    let error = parse_disks("[[disk]]\n").unwrap_err();
    assert_eq!(error.lines().count(), 4, "{error}");
}

const XEN: &str = "[[disk]]\nname = \"vbds\"\nkind = \"xen\"\n";

#[test]
fn disks_of_xen_guests_have_folders_of_images() {
    let parse = |text: &str| {
        let config = Config::parse("f", text, &Host { cpus: vec![0] });
        config.map(|config| config.xen_disks.unwrap()).map_err(|errors| errors.to_string())
    };
    let images = "images = [\"/srv/images\", \"/dev/vg0\"]\n";
    let more = "queues = 2\ndirect = \"off\"\niops = \"2k\"\nbandwidth = \"50MB\"\n";
    let xen = parse(&format!("{XEN}{images}{more}{DISK}")).unwrap();
    assert_eq!((xen.name.as_str(), xen.queues, xen.direct), ("vbds", Some(2), Direct::Never));
    let rates = xen.settings.limits.rates();
    assert_eq!(rates.requests, Some(Rate { per_second: 2000, burst: 128 }));
    assert_eq!(rates.bytes, Some(Rate { per_second: 50_000_000, burst: 1 << 20 }));
    assert_eq!(xen.folders, [Path::new("/srv/images"), Path::new("/dev/vg0")]);
    for (rest, want) in [
        ("", "images: missing; give"),
        ("images = []\n", "no image can be used"),
        ("images = [\"/\"]\n", "is not a folder of images"),
        ("images = [\"srv\"]\n", "is not a folder of images"),
        ("images = [\"/srv/..\"]\n", "is not a folder of images"),
        ("images = [\"/a\"]\nsocket = \"/run/a\"\n", "the toolstack says that"),
        (
            "images = [\"/a\"]\nmemory = \"1GiB\"\n",
            "disk[0].memory: only a disk of kind \"vhost-user\" has one; leave it out",
        ),
        ("images = [\"/a\"]\niops-burst = 5\n", "a burst is of a rate; give iops, too"),
        (&format!("{images}{XEN}{images}"), "which serves all vbds"),
    ] {
        let error = parse(&format!("{XEN}{rest}")).unwrap_err();
        assert!(error.contains(want), "{error}");
    }
    let error = parse_disks(&format!("{DISK}{images}")).unwrap_err();
    assert!(error.contains("has one image"), "{error}");
    let request = serde_json::json!({ "name": "v", "kind": "xen", "images": ["/a"] });
    let error = DiskSpec::from_request(request.as_object().unwrap(), &[], Vec::new());
    assert!(error.unwrap_err().to_string().contains("from the configuration file only"));
}

#[test]
fn changes_are_keys_that_can_change() {
    let words = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        disk_changes(&words).map_err(|errors| errors.to_string())
    };
    let disk = parse_disks(&format!("{DISK}iops = \"2k\"\niops-burst = 7\n")).unwrap().remove(0);
    let set = |settings: &DiskSettings, list: &[&str]| {
        settings.changed(DiskKind::VhostUser, &words(list).unwrap()).unwrap()
    };
    let list = ["iops=none", "bandwidth=1.5MB", "bandwidth-burst=64KiB"];
    let settings = set(&disk.settings, &list);
    assert_eq!(settings.limits.rates().requests, None, "with its burst");
    let bytes = Rate { per_second: 1_500_000, burst: 65_536 };
    assert_eq!(settings.limits.rates().bytes, Some(bytes));
    assert_eq!(set(&settings, &["iops=3"]).limits.rates().bytes, Some(bytes));
    let fixed = words(&["image=/x"]).unwrap_err();
    assert!(fixed.contains("remove the disk, and add it anew"), "{fixed}");
    let example = words(&["iops"]).unwrap_err();
    assert!(example.contains("like iops=20k or iops=none"), "{example}");
    let memory = set(&disk.settings, &["memory=64MiB"]);
    assert_eq!(memory.memory_limit(), 64 << 20);
    let default = set(&memory, &["memory=none"]);
    assert_eq!((default.memory, default.memory_limit()), (None, disk.settings.memory_limit()));
    assert!((64 << 20..1 << 50).contains(&default.memory_limit()));
    let xen = disk.settings.changed(DiskKind::Xen, &words(&["memory=64MiB"]).unwrap());
    let error = xen.unwrap_err().to_string();
    assert_eq!(error, "memory: only a disk of kind \"vhost-user\" has one");
    assert!(words(&["iosp=1"]).unwrap_err().contains("did you mean \"iops\"?"));
}

#[test]
fn names_and_sockets_are_a_disks_own() {
    let error = parse_disks(&format!("{DISK}{DISK}")).unwrap_err();
    assert!(error.contains("another disk's name"), "{error}");
    assert!(error.contains("belongs to disk[0] already"), "{error}");
    let port = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/run/a\"\n";
    let error = parse_disks(&format!("{port}{DISK}")).unwrap_err();
    assert!(error.contains("belongs to port \"a\" already"), "{error}");
}
