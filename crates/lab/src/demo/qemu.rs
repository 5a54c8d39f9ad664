//! Two guests under QEMU, attached over vhost-user to the daemon or to OVS-DPDK, or to a Linux
//! bridge.

use super::fabric::Fabric;
use super::site::{Counts, Site, Used};
use super::{ADDRESSES, Args, DemoError, MOST_QUEUES, Over, TIMEOUT};
use crate::guest::{Accel, Emulator, Guest, Image, Mac, Nic, Shell, Spec, let_run};
use crate::progress::Progress;
use control::api::Stats;
use load::cpu;
use std::time::{Duration, Instant};

/// The guests, and what carries their frames.
pub(crate) struct Qemu {
    // The order of drops matters: guests end before the things that they are attached to.
    guests: [Guest; 2],
    virtual_cpus: [Vec<u32>; 2],
    fabric: Fabric,
    since: Instant,
}

impl Qemu {
    pub(crate) fn start(
        args: &Args,
        over: Over,
        image: &Image,
        accel: Accel,
        progress: &Progress,
    ) -> Result<Qemu, DemoError> {
        let stage = progress.stage(format!("starting {}", over.title()));
        let fabric = Fabric::start(over, args)?;
        stage.done("");

        let stage = progress.stage("booting two guests");
        let emulator = args.release.emulator(&args.cache)?;
        let guests = boot(args, &fabric, image, accel, &emulator)?;
        for (guest, address) in guests.iter().zip(ADDRESSES) {
            guest.must(
                &format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up"),
                TIMEOUT,
            )?;
            if over != Over::Bridge && !emulator.has_vectors(accel) {
                guest.must(&deal_to_all(args.cpus), TIMEOUT)?;
            }
        }
        stage.done("");
        let [sender, receiver] = &guests;
        let virtual_cpus = [sender.virtual_cpus()?, receiver.virtual_cpus()?];
        Ok(Qemu { guests, virtual_cpus, fabric, since: Instant::now() })
    }

    /// Resumes or stops the guests, and the process that carries their frames.
    pub(crate) fn let_run(&self, on: bool) {
        self.processes().into_iter().for_each(|id| let_run(id, on));
    }
}

impl Site for Qemu {
    fn title(&self) -> &'static str {
        self.fabric.over().title()
    }

    fn guests(&self) -> [&dyn Shell; 2] {
        self.guests.each_ref().map(|guest| guest as &dyn Shell)
    }

    fn set_queues(&self, queues: u16) -> Result<(), DemoError> {
        for guest in &self.guests {
            // ethtool fails when the number is the current one already.
            guest.must(
                &format!(
                    "ethtool -L eth0 combined {queues} || ethtool -l eth0 | tail -n 2 | grep -q 'Combined:.*{queues}'"
                ),
                TIMEOUT,
            )?;
        }
        Ok(())
    }

    fn counts(&self) -> Result<Counts, DemoError> {
        self.fabric.counts(&self.guests)
    }

    fn daemon(&self) -> Result<Option<Used>, DemoError> {
        Ok(self.fabric.daemon().map(|id| Used { cpu: cpu::used(id), at: self.since.elapsed() }))
    }

    fn stats(&self) -> Result<Option<Stats>, DemoError> {
        self.fabric.stats()
    }

    fn processes(&self) -> Vec<u32> {
        self.fabric.daemon().into_iter().chain(self.guests.iter().map(Guest::id)).collect()
    }

    fn virtual_cpus(&self) -> Option<Duration> {
        let pairs = self.guests.iter().zip(&self.virtual_cpus);
        Some(pairs.map(|(guest, threads)| cpu::used_by(guest.id(), threads)).sum())
    }
}

/// Boots the sender and the receiver, both at the same time.
fn boot(
    args: &Args,
    fabric: &Fabric,
    image: &Image,
    accel: Accel,
    emulator: &Emulator,
) -> Result<[Guest; 2], DemoError> {
    let start = |name: &str, index: u8| {
        let nic = Nic {
            link: fabric.link(index.into()),
            mac: Mac([0x52, 0x54, 0, 0x77, 0, index + 1]),
            queues: MOST_QUEUES,
            options: Vec::new(),
        };
        let spec = Spec {
            cpus: args.cpus,
            nics: vec![nic],
            namespace: fabric.namespace(),
            emulator: emulator.clone(),
            ..Spec::new(name)
        };
        Guest::start(image, accel, &spec)
    };
    let guests = [start("sender", 0)?, start("receiver", 1)?];
    guests.iter().try_for_each(|guest| guest.ready(TIMEOUT))?;
    Ok(guests)
}

/// A command that deals what comes out of the queues to all CPUs, by flow. Where the device has no
/// vectors, all queues interrupt the same CPU, and nearly everything would be done there.
fn deal_to_all(cpus: u16) -> String {
    let mask = (1u32 << cpus) - 1;
    format!("for queue in /sys/class/net/eth0/queues/rx-*; do echo {mask:x} >$queue/rps_cpus; done")
}
