//! A stock Linux guest on the host: as `xl create` makes it, driven through its console.

use super::dom0::{Dom0, FAST_LINUX, TIMEOUT, port};
use super::kind::Kind;
use crate::guest::agent::Agent;
use crate::guest::{GuestError, Job, Shell};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// The specification of a guest.
#[derive(Clone, Debug)]
pub struct DomainSpec {
    /// Its name.
    pub name: String,
    /// How it is virtualised.
    pub kind: Kind,
    /// Virtual CPUs: its frontend takes no more queues, unless `max_queues` says so.
    pub cpus: u16,
    /// Memory in MiB.
    pub memory: u32,
    /// Its initial root file system, in dom0.
    pub ramdisk: String,
    /// The parameter of its frontend's module.
    pub max_queues: Option<u16>,
    /// Its vifs as in `xl.cfg`, such as `script=vif-ringmain,mac=00:16:3e:00:00:01`: eth0, eth1,
    /// ... in the guest.
    pub vifs: Vec<String>,
    /// Its disks as in `xl.cfg`, such as `format=raw,vdev=xvdb,access=rw,target=/a.raw`.
    pub disks: Vec<String>,
    /// Whether it restarts when it reboots. Otherwise it is destroyed.
    pub reboots: bool,
    /// Whether it serves devices of other guests.
    pub is_driver: bool,
}

impl DomainSpec {
    /// A PV guest with two CPUs, 160 MiB and no vif.
    pub fn new(name: &str) -> DomainSpec {
        let kind = Kind::default();
        DomainSpec {
            name: name.into(),
            kind,
            cpus: 2,
            memory: 160,
            ramdisk: "/guest/guest.cpio.gz".into(),
            max_queues: None,
            vifs: Vec::new(),
            disks: Vec::new(),
            reboots: false,
            is_driver: false,
        }
    }

    /// The same with one more vif.
    #[must_use]
    pub fn vif(mut self, vif: &str) -> DomainSpec {
        self.vifs.push(vif.into());
        self
    }

    /// The configuration that `xl create` reads. `fast`: further arguments of the kernel.
    fn config(&self, fast: &str) -> String {
        let DomainSpec { name, kind, cpus, memory, ramdisk, .. } = self;
        let mut extra = format!("console=hvc0 panic=-1 loglevel=4{fast}");
        if let Some(queues) = self.max_queues {
            // Writing to a string does not fail.
            let _ = write!(extra, " max_queues={queues}");
        }
        let [vifs, disks] = [&self.vifs, &self.disks].map(|all| {
            let quoted: Vec<String> = all.iter().map(|one| format!("'{one}'")).collect();
            quoted.join(", ")
        });
        let reboot = if self.reboots { "restart" } else { "destroy" };
        let is_driver = u8::from(self.is_driver);
        // Xen does not trust the time stamps of QEMU's processors as it does those of real ones,
        // and would emulate each reading of them. That is slow, and where QEMU's emulation of PVH
        // guests was seen to fail, now and then.
        format!(
            "name = \"{name}\"\ntype = \"{kind}\"\ntsc_mode = \"native\"\n\
             vcpus = {cpus}\nmemory = {memory}\n\
             kernel = \"/guest/vmlinux\"\nramdisk = \"{ramdisk}\"\nextra = \"{extra}\"\n\
             vif = [ {vifs} ]\ndisk = [ {disks} ]\ndriver_domain = {is_driver}\n\
             on_poweroff = \"destroy\"\non_reboot = \"{reboot}\"\non_crash = \"destroy\"\n"
        )
    }
}

impl Dom0 {
    /// Creates a stock guest. It boots meanwhile; [`Domain::ready`] waits for the end of that.
    ///
    /// # Errors
    /// When `xl create` fails, for example because no backend serves the vifs.
    pub fn create(&self, spec: &DomainSpec) -> Result<Domain, GuestError> {
        Domain::create(self, spec)
    }
}

/// A guest that was created. It is destroyed when this value goes.
#[derive(Debug)]
pub struct Domain {
    dom0: Dom0,
    name: String,
    id: u16,
    agent: Arc<Agent>,
    /// The channel between its console and us, and what carries it in dom0.
    channel: u16,
    relay: Option<Job>,
    destroyed: bool,
}

impl Domain {
    pub(super) fn create(dom0: &Dom0, spec: &DomainSpec) -> Result<Domain, GuestError> {
        let name = &spec.name;
        let config = format!("/tmp/{name}.cfg");
        let fast = if dom0.is_counted() { "" } else { FAST_LINUX };
        dom0.write(&config, &spec.config(fast))?;
        let create = format!("xl create -q {config} && xl domid {name}");
        let id = number(&dom0.must(&create, TIMEOUT)?, &create)?;
        Self::attach(dom0, name, id).inspect_err(|_| {
            // The first error is reported.
            let _ = dom0.run(&format!("xl destroy {name}"), TIMEOUT);
        })
    }

    fn attach(dom0: &Dom0, name: &str, id: u16) -> Result<Domain, GuestError> {
        let (channel, stream) = dom0.channel()?;
        let give_back = || dom0.give_back(channel);
        let agent = Agent::new(name, stream, std::io::empty(), dom0.clock())
            .map_err(|source| GuestError::Channel { what: "no channel to the guest", source })
            .inspect_err(|_| give_back())?;
        let relay = relay(dom0, id, channel).inspect_err(|_| give_back())?;
        let (dom0, name) = (dom0.clone(), name.to_owned());
        Ok(Domain { dom0, name, id, agent, channel, relay: Some(relay), destroyed: false })
    }

    /// Its number. The vif with handle 0 is `vifID.0`.
    pub fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn dom0(&self) -> &Dom0 {
        &self.dom0
    }

    /// Waits until it is up.
    ///
    /// # Errors
    /// When that takes longer than `limit`.
    pub fn ready(&self, limit: Duration) -> Result<(), GuestError> {
        self.agent.wait_for_boot(1, limit)
    }

    /// The end of what its kernel printed.
    pub fn console(&self) -> String {
        self.agent.console()
    }

    /// `xl destroy`, and the end of what ran in it.
    ///
    /// # Errors
    /// When the toolstack fails.
    pub fn destroy(mut self) -> Result<(), GuestError> {
        self.end()
    }

    /// Leaves the guest to a host that no longer knows it, and is about to go.
    pub fn abandon(mut self) {
        self.destroyed = true;
    }

    /// Reloads the module of its frontend, with at most this number of queues. Must not be called
    /// while it has a vif in use.
    ///
    /// # Errors
    /// When the guest cannot do it within `limit`.
    pub fn load_frontend(&self, queues: u16, limit: Duration) -> Result<(), GuestError> {
        let load = format!("insmod /modules/xen-netfront.ko max_queues={queues}");
        self.must(&format!("rmmod xen_netfront; {load}"), limit).map(drop)
    }

    /// Detaches all of its vifs, and waits until their interfaces are gone.
    ///
    /// # Errors
    /// When the toolstack fails, or the guest has an interface after `limit`.
    pub fn detach_vifs(&self, limit: Duration) -> Result<(), GuestError> {
        let id = self.id;
        let detach = format!(
            "for handle in $(xenstore-list /local/domain/{id}/device/vif); do
            xl network-detach {id} $handle || exit
            done"
        );
        self.dom0.must(&detach, limit)?;
        self.must("while ls /sys/class/net | grep -q eth; do usleep 50000; done", limit).map(drop)
    }

    /// `xl save`. The guest is gone then, and its state is in a file of dom0.
    ///
    /// # Errors
    /// When the toolstack fails.
    pub fn save(&mut self, to: &str) -> Result<(), GuestError> {
        self.dom0.must(&format!("xl save {} {to}", self.id), TIMEOUT)?;
        self.destroyed = true;
        self.disconnect();
        Ok(())
    }

    /// `xl restore`, under another number. Commands that ran in the guest go on.
    ///
    /// # Errors
    /// When the toolstack fails.
    pub fn restore(&mut self, from: &str) -> Result<(), GuestError> {
        let restore = format!("xl restore {from} >&2 && xl domid {}", self.name);
        let id = number(&self.dom0.must(&restore, TIMEOUT)?, &restore)?;
        self.reconnect(id)
    }

    /// `xl reboot`, and waits until the guest is up again, under another number.
    ///
    /// # Errors
    /// When the toolstack fails, or the guest does not come up within `limit`.
    pub fn reboot(&mut self, limit: Duration) -> Result<(), GuestError> {
        let (id, name, boots) = (self.id, &self.name, self.agent.boots());
        // The name belongs to the old domain until that is gone, and then to none for a moment.
        let reboot = format!(
            "xl reboot {id}
            while id=$(xl domid {name} 2>/dev/null || echo {id}); [ $id = {id} ]; do usleep 200000; done
            echo $id"
        );
        let id = number(&self.dom0.must(&reboot, TIMEOUT)?, &reboot)?;
        self.destroyed = true;
        self.disconnect();
        self.reconnect(id)?;
        self.agent.wait_for_boot(boots + 1, limit)
    }

    fn reconnect(&mut self, id: u16) -> Result<(), GuestError> {
        (self.id, self.destroyed) = (id, false);
        let (channel, stream) = self.dom0.channel()?;
        self.channel = channel;
        self.agent
            .reconnect(stream)
            .map_err(|source| GuestError::Channel { what: "no channel to the guest", source })?;
        self.relay = Some(relay(&self.dom0, id, channel)?);
        Ok(())
    }

    fn disconnect(&mut self) {
        self.agent.close();
        if let Some(relay) = self.relay.take()
            && relay.stop(TIMEOUT).is_ok()
        {
            self.dom0.give_back(self.channel);
        }
    }

    fn end(&mut self) -> Result<(), GuestError> {
        self.destroyed = true;
        // The number is used, because another domain may have the name by now.
        let result =
            self.dom0.must(&format!("xl destroy {0} || ! xl domname {0}", self.id), TIMEOUT);
        self.disconnect();
        result.map(drop)
    }
}

/// The number that a command of the toolstack printed last. Warnings come before.
pub(super) fn number(printed: &str, command: &str) -> Result<u16, GuestError> {
    let last = printed.lines().last().unwrap_or_default();
    last.trim().parse().map_err(|_| GuestError::Failed {
        name: "dom0".into(),
        command: command.into(),
        code: 0,
        text: printed.into(),
    })
}

/// Carries what a domain's console says to a channel of ours, and back.
fn relay(dom0: &Dom0, id: u16, channel: u16) -> Result<Job, GuestError> {
    // The console ends with the domain, and who waits for an answer need not wait any longer. What
    // is read from the channel before the host's end is noticed is the end of a file: thus once
    // more.
    dom0.spawn(&format!(
        "exec 4<>$(echo {})\n\
         gone() {{ printf '\\ngone\\n' >&4; exit; }}\n\
         until tty=$(xenstore-read /local/domain/{id}/console/tty) && [ -c \"$tty\" ]; do\n\
         xenstore-exists /local/domain/{id} || gone\n\
         usleep 50000; done\n\
         (cat <\"$tty\" >&4; gone) &\n\
         while [ -c \"$tty\" ]; do cat <&4; usleep 20000; done >\"$tty\"",
        port(channel)
    ))
}

impl Shell for Domain {
    fn name(&self) -> &str {
        &self.name
    }

    fn spawn(&self, command: &str) -> Result<Job, GuestError> {
        self.agent.start(command)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.destroyed {
            // An error means that dom0 is gone, and the domain with it, or that the user has
            // interrupted the wait.
            let _ = self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vifs_and_queues_are_in_the_configuration() {
        let spec = DomainSpec { max_queues: Some(4), kind: Kind::Pvh, ..DomainSpec::new("a") };
        let text = spec
            .vif("script=vif-ringmain,mac=00:16:3e:00:00:01")
            .vif("script=vif-ringmain")
            .config("");
        assert!(
            text.contains(
                "vif = [ 'script=vif-ringmain,mac=00:16:3e:00:00:01', 'script=vif-ringmain' ]"
            ),
            "{text}"
        );
        assert!(text.contains("type = \"pvh\"") && text.contains(" max_queues=4\""), "{text}");
    }
}
