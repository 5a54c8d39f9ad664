//! Two stock guests on a real Xen host, and the daemon, or the kernel's own backend, in its dom0.

use super::site::{Counts, QueueCount, Site, Used, queues};
use super::{ADDRESSES, Args, DemoError, MOST_QUEUES, Over, TIMEOUT};
use crate::guest::{GuestError, Shell};
use crate::progress::Progress;
use crate::xen::{Dom0, Domain, DomainSpec, Netback, Options, Service, Testbed};
use control::api::Stats;

/// The host and its guests.
pub(crate) struct Xen {
    // The order of drops matters: guests end before their host.
    guests: [Domain; 2],
    /// None where the kernel serves their vifs.
    service: Option<Service>,
    dom0: Dom0,
}

impl Xen {
    pub(crate) fn start(args: &Args, over: Over, progress: &Progress) -> Result<Xen, DemoError> {
        let netback = if over == Over::Bridge { Netback::Kernel } else { Netback::Ringmain };
        let testbed = Testbed::find(&args.cache)?;
        let stage = progress.stage("booting Xen and its dom0, in software");
        let dom0 = Dom0::boot(&testbed, &Options::default())?;
        stage.done("");

        let stage = progress.stage(format!("starting {} in dom0", netback.name()));
        let workers = super::workers(args.workers.or(Some(2)));
        let service = netback.set_up(&dom0, &args.program, MOST_QUEUES, &workers)?;
        stage.done("");

        let stage = progress.stage("booting two guests");
        let create = |name| {
            let spec = DomainSpec {
                cpus: args.cpus,
                max_queues: Some(MOST_QUEUES),
                ..DomainSpec::new(name)
            };
            dom0.create(&spec.vif(netback.vif()))
        };
        let guests = [create("sender")?, create("receiver")?];
        for (guest, address) in guests.iter().zip(ADDRESSES) {
            guest.ready(TIMEOUT)?;
            guest.must(
                &format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up"),
                TIMEOUT,
            )?;
        }
        stage.done("");
        Ok(Xen { guests, service, dom0 })
    }
}

impl Site for Xen {
    fn title(&self) -> &'static str {
        match self.service {
            Some(_) => Netback::Ringmain.name(),
            None => Netback::Kernel.name(),
        }
    }

    fn guests(&self) -> [&dyn Shell; 2] {
        self.guests.each_ref().map(|guest| guest as &dyn Shell)
    }

    /// Unbinds the driver, sets its number of queues and binds it again: there is no other way.
    fn set_queues(&self, queues: u16) -> Result<(), DemoError> {
        for (guest, address) in self.guests.iter().zip(ADDRESSES) {
            let anew = format!(
                "echo vif-0 >/sys/bus/xen/drivers/vif/unbind
                echo {queues} >/sys/module/xen_netfront/parameters/max_queues
                echo vif-0 >/sys/bus/xen/drivers/vif/bind
                until [ -d /sys/class/net/eth0 ]; do usleep 20000; done
                ip addr add {address}/24 dev eth0 && ip link set eth0 up"
            );
            guest.must(&anew, TIMEOUT)?;
        }
        Ok(())
    }

    fn counts(&self) -> Result<Counts, DemoError> {
        let [sender, receiver] = &self.guests;
        let Some(service) = &self.service else {
            return Ok(Counts {
                sender: self.kernel_counts(sender)?,
                receiver: self.kernel_counts(receiver)?,
            });
        };
        let stats = service.stats()?;
        let of = |guest: &Domain| {
            let name = format!("vif{}.0", guest.id());
            queues(stats.ports.iter().find(|port| port.name == name))
        };
        Ok(Counts { sender: of(sender), receiver: of(receiver) })
    }

    fn daemon(&self) -> Result<Option<Used>, DemoError> {
        let Some(service) = &self.service else { return Ok(None) };
        let [cpu, at] = service.used()?;
        Ok(Some(Used { cpu, at }))
    }

    fn stats(&self) -> Result<Option<Stats>, DemoError> {
        Ok(self.service.as_ref().map(Service::stats).transpose()?)
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.dom0.id()]
    }
}

impl Xen {
    /// The kernel's counts for a guest, over all of its queues. Its vif receives what the guest
    /// sends.
    fn kernel_counts(&self, guest: &Domain) -> Result<Vec<QueueCount>, DemoError> {
        let command = format!(
            "cd /sys/class/net/vif{}.0/statistics && cat rx_bytes tx_bytes tx_packets",
            guest.id()
        );
        let said = self.dom0.must(&command, TIMEOUT)?;
        let numbers: Vec<u64> =
            said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[tx_bytes, rx_bytes, rx_frames] = numbers.as_slice() else {
            return Err(GuestError::Tool { tool: "cat in dom0".into(), stderr: said }.into());
        };
        Ok(vec![QueueCount { tx_bytes, rx_bytes, rx_frames, rx_interrupts: 0 }])
    }
}
