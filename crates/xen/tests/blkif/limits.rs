//! Limits of vbds: each has credit of its own, and limits change in service.

use std::time::Instant;

use crate::blkfront::{Front, Host, Io, OKAY, SECTOR, Spec, wait};
use runtime::token_bucket::Rate;
use storage::limits::DiskRates;
use xen::blkif::service::{Service, VbdLimits};
use xen::xenbus::DeviceId;

/// One request per second, and so many at once.
fn slow(burst: u64) -> DiskRates {
    DiskRates { requests: Some(Rate { per_second: 1, burst }), bytes: None }
}

fn service(host: &Host) -> &Service {
    host.service.as_ref().unwrap()
}

fn id(front: &Front) -> DeviceId {
    front.device(|device| {
        let (domain, handle) = (device.frontend, device.handle);
        DeviceId { class: "vbd", domain, handle }
    })
}

fn limits(host: &Host, front: &Front) -> VbdLimits {
    service(host).limits(id(front)).unwrap()
}

/// Sends reads of one sector, in turns on all queues.
fn send(front: &Front, reads: usize) -> Vec<(usize, Io)> {
    let queues = front.queues.len();
    let sent = (0..reads).map(|n| (n % queues, front.queues[n % queues].start_read(0, 1)));
    let sent = sent.collect();
    front.queues.iter().for_each(|queue| queue.push());
    sent
}

fn end(front: &Front, sent: Vec<(usize, Io)>) {
    sent.iter().for_each(|(queue, io)| assert_eq!(front.queues[*queue].end(io), OKAY));
}

/// Reads that have begun.
fn begun(host: &Host, front: &Front) -> u64 {
    host.sum(front, |queue| queue.requests.reads.get())
}

/// Waits until all queues of a vbd wait for credit.
fn await_limit(host: &Host, front: &Front, queues: u64) {
    wait(|| host.sum(front, |queue| queue.limited.get().min(1)) == queues);
}

/// The most that may have begun at a burst of `burst`, since the limits were set.
fn most(burst: u64, since: Instant) -> u64 {
    burst + since.elapsed().as_secs() + 1
}

#[test]
fn each_vbd_has_credit_of_its_own() {
    let since = Instant::now();
    let host = Host::limited(2, slow(5));
    let spec = || Spec { queues: 2, ..Spec::default() };
    let fronts = [1, 2].map(|domain| Front::connected(&host, domain, spec()));
    let reads = fronts.each_ref().map(|front| send(front, 60));
    for front in &fronts {
        await_limit(&host, front, 2);
        let begun = begun(&host, front);
        assert!((5..=most(5, since)).contains(&begun), "{begun}");
        assert_eq!(limits(&host, front), VbdLimits { rates: slow(5), own: false });
    }
    let [first, second] = reads;
    // One is let go, and the other is not.
    assert!(service(&host).set_limits(id(&fronts[0]), DiskRates::default()));
    end(&fronts[0], first);
    let waits = begun(&host, &fronts[1]);
    assert!(waits <= most(5, since), "{waits}");
    service(&host).set_all_limits(DiskRates::default());
    end(&fronts[1], second);
}

#[test]
fn limits_of_one_vbd_go_with_it() {
    let mut host = Host::limited(1, DiskRates::default());
    let image = host.new_image("a.raw");
    let mut front = Front::attached(&host, 1, Spec::default(), &image);
    wait(|| host.vbd(&front).is_some());
    // Before there is a disk.
    assert!(service(&host).set_limits(id(&front), slow(3)));
    let since = Instant::now();
    front.connect();
    let reads = send(&front, 20);
    await_limit(&host, &front, 1);
    let begun = begun(&host, &front);
    assert!((3..=most(3, since)).contains(&begun), "{begun}");
    assert!(service(&host).set_limits(id(&front), slow(100)));
    end(&front, reads);
    // The next connection has them, too.
    front.close();
    front.put("state", 1);
    front.connect();
    let own = VbdLimits { rates: slow(100), own: true };
    assert_eq!(limits(&host, &front), own);
    assert_eq!(front.read(0, 0, 1).0, OKAY);
    // Another disk in its place has not, and neither has any disk of another daemon.
    front.device(|device| host.machine.forget(device).unwrap());
    wait(|| host.vbd(&front).is_none());
    assert!(!service(&host).set_limits(id(&front), slow(1)));
    front.attach();
    wait(|| host.vbd(&front).is_some());
    let all = VbdLimits { rates: DiskRates::default(), own: false };
    assert_eq!(limits(&host, &front), all);
    assert!(service(&host).set_limits(id(&front), slow(3)));
    host.stop();
    host.start();
    wait(|| host.vbd(&front).is_some());
    assert_eq!(limits(&host, &front), all);
}

/// Limits of all replace those of single ones, and hold for disks that come later.
#[test]
fn limits_of_all_are_those_of_each() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    assert!(service(&host).set_limits(id(&front), slow(200)));
    let bytes = Rate { per_second: SECTOR as u64, burst: 4 * SECTOR as u64 };
    let rates = DiskRates { requests: None, bytes: Some(bytes) };
    service(&host).set_all_limits(rates);
    let since = Instant::now();
    let late = Front::connected(&host, 2, Spec::default());
    let fronts = [front, late];
    let reads = fronts.each_ref().map(|front| send(front, 20));
    for front in &fronts {
        assert_eq!(limits(&host, front), VbdLimits { rates, own: false });
        await_limit(&host, front, 1);
        let begun = begun(&host, front);
        assert!((4..=most(4, since)).contains(&begun), "{begun}");
    }
    service(&host).set_all_limits(DiskRates::default());
    fronts.iter().zip(reads).for_each(|(front, reads)| end(front, reads));
}
