//! A PVH guest, on a host of its own. Such a guest has nested page tables. Under QEMU 10 it ends as
//! it starts, so the installed QEMU runs this host: 7.2 in Debian 12.
//!
//! The module comes before all others: no other test then has to boot its host a second time.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lab::guest::Shell;
use lab::xen::{Dom0, Domain, DomainSpec, Kind};

use super::host::{QUEUES, Scene, VIF};
use super::traffic::{LIMIT, address_it, clean, ping_both, tcp_both};

/// Attempts of the test below.
const ATTEMPTS: u32 = 6;

#[test]
#[ignore = "boots Xen"]
fn a_pvh_guest_beside_a_pv_guest() {
    let scene = Scene::on_installed_emulator();
    let [pv, _] = scene.guests();
    address_it(pv, &scene.plug(pv, ""), 0);
    for attempt in 1.. {
        scene.dom0.must("xl dmesg -c", LIMIT).unwrap();
        let spec =
            DomainSpec { kind: Kind::Pvh, max_queues: Some(QUEUES), ..DomainSpec::new("pvh") };
        let pvh = scene.dom0.create(&spec.vif(VIF)).unwrap();
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| pvh_beside_pv(&pvh, pv))) else {
            return;
        };
        let said = scene.dom0.must("xl dmesg", LIMIT).unwrap();
        let is_lost = said.contains("Triple fault") || sleeps_for_good(&scene.dom0, &pvh);
        if !is_lost || attempt == ATTEMPTS {
            eprintln!("attempt {attempt}; Xen said: {said}");
            resume_unwind(failure);
        }
        eprintln!("once more: the emulated processor failed");
        clean(pv).unwrap();
    }
}

/// Whether a guest is asleep although its console has something for it.
///
/// QEMU's emulation of nested virtualisation now and then loses the state of such a guest, whose
/// processor then shuts down: a triple fault, with Xen's own registers for the guest's, or with the
/// guest's own and nothing amiss. Or an interrupt is lost; Xen sends none before the guest has
/// handled it, so the guest sleeps, whatever its console and its timer have for it. A backend can
/// do neither: at worst it upsets the guest's kernel, which then says so or is busy.
fn sleeps_for_good(dom0: &Dom0, guest: &Domain) -> bool {
    let state = || {
        let list = format!("xl list {} | tail -n 1", guest.id());
        let line = dom0.must(&list, LIMIT).unwrap();
        let words = line.split_whitespace().skip(4);
        // The state, and the processor time so far.
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = state();
    let answers = guest.run("true", LIMIT / 3).is_ok();
    let after = state();
    eprintln!("the guest answers: {answers}; before and after: {before:?}, {after:?}");
    !answers && before == after && after.first().is_some_and(|flags| flags.contains('b'))
}

fn pvh_beside_pv(pvh: &Domain, pv: &Domain) {
    pvh.ready(LIMIT).unwrap();
    address_it(pvh, "eth0", 2);
    assert_eq!(pvh.must("ls -d /sys/class/net/eth0/queues/tx-* | wc -l", LIMIT).unwrap(), "4\n");
    ping_both((pv, 0), (pvh, 2), 4000);
    tcp_both((pv, 0), (pvh, 2), 1);
}
