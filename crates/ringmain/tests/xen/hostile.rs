//! A guest that is root in its domain and speaks to the backend itself, through the kernel's
//! devices for grants, event channels and the store, beside two stock guests that exchange data.
//!
//! The attacks are those of `tests/frontends`, whose executable runs in the guest.

use super::exchange::Exchange;
use super::executable::executable;
use super::host::{Scene, port_of};
use super::traffic::{LIMIT, eventually};
use control::api::{PortReport, Stats};
use lab::guest::Shell;
use lab::xen::{Domain, DomainSpec};
use std::process::Command;

/// What each innocent guest receives at least while an attack goes on, in bytes.
const MEGABYTE: u64 = 1 << 20;

/// What the port of the hostile guest must be charged with.
enum Charge {
    /// Frames.
    Frames,
    /// Connections that were ended for one of these reasons.
    Stopped(&'static [&'static str]),
}

/// What is wrong with keys that make no sense.
const BAD_KEYS: &[&str] = &[
    "is not a number in range",
    "has not granted page",
    "has no event channel",
    "multi-queue-num-queues is 1000000000",
    "request-rx-copy is not 1",
];

/// Attacks by their names: few, since each takes a minute of an emulated guest. The others are
/// tried on the embedded hypervisor.
const ATTACKS: &[(&str, Charge)] = &[
    ("keys", Charge::Stopped(BAD_KEYS)),
    ("indices", Charge::Stopped(&["request index jumped"])),
    ("revoked", Charge::Stopped(&["is not granted for"])),
];

/// The attack during which the guest is destroyed: frames whose pages are being copied.
const LAST: (&str, Charge) = ("fragments", Charge::Frames);

impl Charge {
    fn is_made(&self, before: &PortReport, now: &PortReport) -> bool {
        match self {
            Charge::Frames => now.total.tx_frames > before.total.tx_frames + 1000,
            Charge::Stopped(reasons) => {
                let is_reason = |why: &String| reasons.iter().any(|reason| why.contains(reason));
                now.violations >= before.violations + 3
                    && now.reason.as_ref().is_some_and(is_reason)
            }
        }
    }
}

/// Creates a guest whose only frontend is the executable of the attacks: modules for the devices
/// are in the place of the stock frontend.
fn hostile_guest(scene: &Scene) -> Domain {
    const RAMDISK: &str = "/tmp/foe.cpio";
    let stripped = tempfile::NamedTempFile::new().unwrap();
    let strip = Command::new("strip")
        .arg("-o")
        .arg(stripped.path())
        .arg(executable("frontends"))
        .status()
        .unwrap();
    assert!(strip.success(), "strip: {strip}");
    scene.dom0.copy(stripped.path(), "/tmp/foe/attack").unwrap();
    // Of files in several archives, the kernel takes the last.
    let archive = format!(
        "set -e
        cd /tmp/foe
        mkdir modules
        chmod 755 attack
        for module in xen-evtchn.ko xen-gntalloc.ko; do
        cp /lib/modules/*/kernel/drivers/xen/$module modules
        echo $module >>modules/order
        done
        busybox gunzip -c /guest/guest.cpio.gz >{RAMDISK}
        find . | busybox cpio -o -H newc >>{RAMDISK}
        cd /
        rm -r /tmp/foe"
    );
    scene.dom0.must(&archive, LIMIT).unwrap();
    let spec = DomainSpec { ramdisk: RAMDISK.into(), memory: 192, ..DomainSpec::new("foe") };
    let foe = scene.dom0.create(&spec.vif("script=vif-ringmain")).unwrap();
    scene.dom0.must(&format!("rm {RAMDISK}"), LIMIT).unwrap();
    foe
}

/// The port of the hostile guest's only vif.
fn port<'a>(stats: &'a Stats, guest: &Domain) -> &'a PortReport {
    port_of(stats, guest, 0).unwrap()
}

/// Ends the attack when it is dropped: a check that fails must not wait for an attack that goes on.
struct Ending<'a>(&'a Domain);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.must("touch /tmp/stop", LIMIT) {
            eprintln!("{error}");
        }
    }
}

/// The command that carries out an attack in the guest.
fn command(attack: &str) -> String {
    format!(
        "rm -f /tmp/stop; ATTACK='{attack}' /attack --ignored --nocapture --exact \
         an_attack_by_a_guest_of_xen 2>&1"
    )
}

/// Carries out an attack until the port has been charged for it, and the innocents have gone on
/// meanwhile.
fn run(innocents: &Exchange<'_>, foe: &Domain, (name, charge): &(&str, Charge)) {
    let before = innocents.scene.stats();
    let attack = foe.spawn(&command(name)).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| attack.wait(LIMIT).unwrap());
        let ending = Ending(foe);
        let mut charged = false;
        eventually(name, || {
            // An attack that connects again after it was stopped is seen stopped only for a while.
            let now = innocents.scene.stats();
            charged |= charge.is_made(port(&before, foe), port(&now, foe));
            thread.is_finished() || charged && innocents.went_on(&before, &now, MEGABYTE)
        });
        drop(ending);
        let said = thread.join().unwrap();
        let port = innocents.scene.port(foe, 0).unwrap();
        assert!(said.code == 0 && charged, "{name}: {}{port:#?}", said.text);
        let steps = said.text.lines().find(|line| line.ends_with(" steps")).unwrap_or_default();
        println!(
            "{name}: {steps}, {} connections, {} violations, {:?}",
            port.connections, port.violations, port.reason
        );
    });
}

/// What dom0 has that belongs to a domain: the domain itself, which stays while a page of it is
/// mapped, its directories in the store, and event channels to it.
fn traces(scene: &Scene, id: u16) -> String {
    let look = format!(
        "xl list | awk '$2 == {id}'
        xenstore-ls -f / | cut -d ' ' -f 1 | grep -E '/(domain|vif|libxl)/{id}(/|$)'
        lsevtchn 0 | grep -w 'Remote Domain {id}'
        true"
    );
    scene.dom0.must(&look, LIMIT).unwrap()
}

/// Mappings of granted pages, and descriptors, that the daemon has.
fn holdings(scene: &Scene) -> Vec<u32> {
    let pid = scene.stats().pid;
    let look = format!("grep -c xen/gntdev /proc/{pid}/maps; ls /proc/{pid}/fd | wc -l");
    let said = scene.dom0.must(&look, LIMIT).unwrap();
    said.lines().map(|number| number.trim().parse().unwrap()).collect()
}

#[test]
#[ignore = "boots Xen"]
fn a_hostile_guest_disturbs_nobody_and_leaves_nothing_behind() {
    let scene = Scene::new("");
    // It boots while the others do.
    let foe = hostile_guest(&scene);
    let id = foe.id();
    let innocents = Exchange::start(&scene);
    let daemon = scene.stats().pid;
    // The hostile guest has not connected its vif yet.
    let before = holdings(&scene);
    foe.ready(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    for attack in ATTACKS {
        run(&innocents, &foe, attack);
    }

    // It is destroyed in the middle of an attack.
    let (name, charge) = LAST;
    let before_last = scene.port(&foe, 0).unwrap();
    let attack = foe.spawn(&command(name)).unwrap();
    eventually(name, || charge.is_made(&before_last, &scene.port(&foe, 0).unwrap()));
    let found = traces(&scene, id);
    for kind in ["foe", "/local/domain/", "/backend/vif/", "Remote Domain"] {
        assert!(found.contains(kind), "no {kind} in {found}");
    }
    foe.destroy().unwrap();
    assert!(attack.wait(LIMIT).is_err(), "it ran in a guest that is gone");
    let name = format!("vif{id}.0");
    eventually("the port to go", || scene.stats().ports.iter().all(|port| port.name != name));
    eventually("everything of it to go", || {
        let (left, held) = (traces(&scene, id), holdings(&scene));
        println!("left: {left:?}; mappings and descriptors: {before:?} before, {held:?} now");
        left.is_empty() && held.iter().zip(&before).all(|(now, before)| now <= before)
    });

    let since = scene.stats();
    eventually("the innocents", || innocents.went_on(&since, &scene.stats(), MEGABYTE));
    let guests = innocents.guests;
    innocents.finish();
    // Nothing was held against them.
    for guest in guests {
        let port = scene.port(guest, 0).unwrap();
        let held = (port.violations, port.control_delayed, &port.reason);
        assert_eq!(held, (0, 0, &None), "{port:#?}");
    }
    assert_eq!(scene.stats().pid, daemon, "another daemon");
    scene.check_balance();
}
