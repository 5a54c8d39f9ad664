//! A daemon in a domain of its own, which serves the vifs of others: a driver domain. dom0 has no
//! daemon, and no part in the traffic.

use super::host::Scene;
use super::pair::talk;
use super::traffic::{LIMIT, address_it, eventually};
use control::api::Stats;
use lab::daemon::is_balanced;
use lab::guest::Shell;
use lab::xen::{Dom0, Domain, DomainSpec};

/// How often a vif is attached until its backend was prompt.
const ATTEMPTS: u32 = 5;

/// What a driver domain boots, in dom0.
const RAMDISK: &str = "/root/driver.cpio";

/// Makes the ramdisk: that of other guests, and behind it the daemon, the toolstack's part for
/// driver domains, and modules for Xen's devices, all out of dom0's own files.
const MAKE_RAMDISK: &str = r#"
set -e
rm -rf /root/driver && mkdir -p /root/driver && cd /root/driver
mkdir -p dev etc/xen root run/ringmain var/lib/xen var/log/xen var/lock
ln -s /run var/run
programs="/usr/local/bin/ringmain /usr/lib/xen-4.17/bin/xl
  $(for tool in read write rm list exists; do echo /usr/bin/xenstore-$tool; done)"
libraries=$(ldd $programs | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u)
cp -L --parents $programs $libraries /etc/xen/scripts/vif-ringmain /etc/passwd .
mkdir xen-modules
for module in xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xenfs; do
  modprobe --show-depends $module
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r path; do
  cp "$path" xen-modules/
  echo "${path##*/}"
done >xen-modules/order
cp /guest/guest.cpio.gz /root/driver.cpio.new
truncate -s %4 /root/driver.cpio.new
find . | busybox cpio -o -H newc 2>/dev/null >>/root/driver.cpio.new
rm -rf /root/driver
mv /root/driver.cpio.new /root/driver.cpio
"#;

/// Makes the domain a driver domain, in the order of a boot: Xen's devices, the daemon, and the
/// toolstack's part, which runs hotplug scripts.
const SET_UP: &str = r#"
while read -r module; do insmod /xen-modules/$module || exit; done </xen-modules/order
mount -t xenfs xenfs /proc/xen || exit
printf '[workers]\ncount = 1\n[[port]]\nname = "vifs"\nkind = "xen"\nqueues = 4\n' >/root/ringmain.toml
export PATH=/usr/local/bin:/usr/lib/xen-4.17/bin:/usr/bin:$PATH
ringmain serve --config /root/ringmain.toml >/root/log 2>&1 &
until ringmain port list >/dev/null 2>&1; do usleep 100000; done
xl devd >/root/devd 2>&1
"#;

/// A domain with a daemon in it.
struct DriverDomain(Domain);

impl DriverDomain {
    fn boot(dom0: &Dom0) -> DriverDomain {
        dom0.must(MAKE_RAMDISK, LIMIT).unwrap();
        let spec = DomainSpec {
            memory: 400,
            ramdisk: RAMDISK.into(),
            is_driver: true,
            ..DomainSpec::new("driver")
        };
        let domain = dom0.create(&spec).unwrap();
        domain.ready(LIMIT).unwrap();
        let driver = DriverDomain(domain);
        driver.0.must(SET_UP, LIMIT).unwrap();
        driver
    }

    fn stats(&self) -> Stats {
        let said = self.0.must("/usr/local/bin/ringmain stats --json", LIMIT).unwrap();
        serde_json::from_str(&said).unwrap()
    }
}

impl Drop for DriverDomain {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.0.run("cat /root/log /root/devd /var/log/xen/*", LIMIT);
            eprintln!("in the driver domain: {}", logs.map_or_else(|e| e.to_string(), |l| l.text));
        }
    }
}

/// Attaches a vif that the driver domain serves. The toolstack waits ten seconds for a backend,
/// which may be too short for a domain on a busy machine.
fn attach(dom0: &Dom0, guest: &Domain) {
    let attach = format!("xl network-attach {} script=vif-ringmain backend=driver", guest.id());
    for attempt in 1.. {
        match dom0.must(&attach, LIMIT) {
            Ok(_) => break,
            Err(error) if attempt == ATTEMPTS => panic!("{error}"),
            Err(_) => guest.detach_vifs(LIMIT).unwrap(),
        }
    }
    guest.must("until [ -d /sys/class/net/eth0 ]; do usleep 50000; done", LIMIT).unwrap();
}

#[test]
#[ignore = "boots Xen"]
fn a_daemon_in_a_domain_of_its_own_serves_others() {
    let scene = Scene::without_daemon();
    let driver = DriverDomain::boot(&scene.dom0);
    let guests = scene.guests();
    for (port, guest) in guests.into_iter().enumerate() {
        attach(&scene.dom0, guest);
        address_it(guest, "eth0", port);
    }
    let [a, b] = guests;
    talk((a, 0), (b, 1));
    eventually("all frames", || is_balanced(&driver.stats()));
    let ports = driver.stats().ports;
    assert_eq!(ports.iter().filter(|port| port.queues.len() == 4).count(), 2, "{ports:#?}");
    let of_dom0 =
        scene.dom0.run("xenstore-list /local/domain/0/backend/vif 2>/dev/null", LIMIT).unwrap();
    assert_eq!(of_dom0.text.trim(), "", "dom0 has a part in it");

    // The vifs go before the domain that serves them.
    for guest in guests {
        guest.detach_vifs(LIMIT).unwrap();
    }
}
