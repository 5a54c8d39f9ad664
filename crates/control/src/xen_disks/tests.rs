use std::sync::Arc;
use std::time::{Duration, Instant};

use ::hypervisor::DomId;
use ::hypervisor::test::{Device, Machine};
use ::storage::{BlockPipeline, engine};
use network::token_bucket::Rate;
use runtime::{Group, ThreadUsage, group};
use storage::limits::DiskRates;

use super::*;
use crate::api::DiskLimitsReport;
use crate::config::{Config, Host, disk_changes};

/// A host without a datapath in use: its vbds wait for their frontends.
struct Site {
    machine: Machine,
    disks: Arc<Disks>,
    xen: XenDisks,
}

fn spec(more: &str) -> XenDisksSpec {
    let text = format!("[[disk]]\nname = \"vbds\"\nkind = \"xen\"\nimages = [\"/srv\"]\n{more}\n");
    Config::parse("f", &text, &Host { cpus: vec![0] }).unwrap().xen_disks.unwrap()
}

fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn device(with: impl FnOnce(&Device<'_>)) {
    with(&Device {
        class: "vbd",
        handle: 51712,
        frontend: DomId(1),
        backend: DomId(0),
        frontend_keys: &[],
        backend_keys: &[("script", "/etc/xen/scripts/block-ringmain")],
    });
}

impl Site {
    /// A site with the vbd of one guest. The service could not be started so far.
    fn new(more: &str) -> Site {
        let doorbells = group::doorbells(1).unwrap();
        let pipelines = vec![BlockPipeline::new(engine::best().unwrap(), ThreadUsage::default)];
        let workers = Group::start(doorbells, pipelines, &[], Default::default()).unwrap();
        let disks = Arc::new(Disks::new(Arc::new(workers)));
        let xen = XenDisks::new(Arc::new(spec(more)), Err(XenDisksError::NotAllowed));
        let machine = Machine::new();
        device(|device| machine.attach(device).unwrap());
        Site { machine, disks, xen }
    }

    fn start(&mut self) {
        let hypervisor = self.machine.hypervisor(DomId(0));
        let config = BlkbackConfig::default();
        self.xen.started(Ok(Service::start(Arc::clone(&self.disks), hypervisor, config).unwrap()));
        wait(|| self.xen.has("vbd1.51712"));
    }

    fn set(&mut self, name: &str, words: &[&str]) -> Option<Result<(), String>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        self.xen.set(name, &disk_changes(&words).unwrap())
    }

    /// The limits in the report of the only disk, and its name.
    fn shown(&self) -> (String, DiskLimitsReport) {
        let reports = self.xen.report(Some(&self.disks));
        assert_eq!(reports.len(), 1, "{reports:#?}");
        (reports[0].name.clone(), reports[0].limits)
    }
}

fn limits(requests: Option<(u64, u64)>, bytes: Option<(u64, u64)>) -> DiskLimitsReport {
    let rate = |(per_second, burst)| Rate { per_second, burst };
    disk_limits(DiskRates { requests: requests.map(rate), bytes: bytes.map(rate) })
}

#[test]
fn limits_are_those_of_all_until_they_are_set_for_one() {
    let mut site = Site::new("iops = 2000");
    let all = limits(Some((2000, 128)), None);
    assert_eq!(site.shown(), ("vbds".to_owned(), all), "not in service yet");
    assert_eq!(site.set("vbds", &["iops=3000"]), Some(Ok(())));
    site.start();
    let vbd = |limits| ("vbd1.51712".to_owned(), limits);
    assert_eq!(site.shown(), vbd(limits(Some((3000, 128)), None)), "what was set meanwhile");

    assert_eq!(site.set("vbd1.51712", &["iops=500", "iops-burst=7"]), Some(Ok(())));
    assert_eq!(site.shown(), vbd(limits(Some((500, 7)), None)));
    // A setting is changed again, and the burst stays.
    assert_eq!(site.set("vbd1.51712", &["iops=600", "bandwidth=1MB"]), Some(Ok(())));
    let bytes = Some((1_000_000, 1 << 20));
    assert_eq!(site.shown(), vbd(limits(Some((600, 7)), bytes)));

    assert_eq!(site.set("vbds", &["iops=none", "bandwidth=2MB"]), Some(Ok(())));
    let all = limits(None, Some((2_000_000, 1 << 20)));
    assert_eq!(site.shown(), vbd(all));
    assert_eq!(site.xen.spec().settings, spec("bandwidth = \"2MB\"").settings);
    // A change of one vbd begins with the common settings.
    assert_eq!(site.set("vbd1.51712", &["iops=500"]), Some(Ok(())));
    assert_eq!(site.shown(), vbd(limits(Some((500, 128)), Some((2_000_000, 1 << 20)))));
}

#[test]
fn a_vbd_that_comes_again_has_the_limits_of_all() {
    let mut site = Site::new("iops = 2000");
    site.start();
    assert_eq!(site.set("vbd1.51712", &["iops=500", "iops-burst=7"]), Some(Ok(())));
    device(|device| site.machine.forget(device).unwrap());
    wait(|| !site.xen.has("vbd1.51712"));
    assert_eq!(site.set("vbd1.51712", &["iops=500"]), None);
    device(|device| site.machine.attach(device).unwrap());
    wait(|| site.xen.has("vbd1.51712"));
    assert_eq!(site.shown().1, limits(Some((2000, 128)), None));
    assert_eq!(site.set("vbd1.51712", &["iops=500"]), Some(Ok(())));
    assert_eq!(site.shown().1, limits(Some((500, 128)), None), "not the burst of before");
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut site = Site::new("iops = 2000");
    site.start();
    let before = site.shown();
    for name in ["vbds", "vbd1.51712"] {
        let refused = site.set(name, &["memory=1GiB", "iops=1"]).unwrap().unwrap_err();
        assert_eq!(refused, "memory: only a disk of kind \"vhost-user\" has one");
        let refused = site.set(name, &["bandwidth-burst=1MiB"]).unwrap().unwrap_err();
        assert!(refused.contains("give bandwidth, too"), "{refused}");
    }
    assert_eq!(site.set("vbd2.51712", &["iops=1"]), None);
    assert_eq!(site.shown(), before);
}
