//! Interfaces and disks of a guest, as QEMU's command line has them.

use std::path::PathBuf;

use frame::Mac;

use super::Accel;
use super::emulator::Emulator;

/// One virtio disk of a guest, at a vhost-user backend to which QEMU connects. QEMU reconnects
/// after the backend was gone.
#[derive(Clone, Debug)]
pub struct DiskLink {
    /// The socket's path.
    pub socket: PathBuf,
    /// Queues offered to the guest.
    pub queues: u16,
    /// QEMU's `vhost-user-blk-pci` properties beyond the usual ones, such as `packed=on`.
    pub options: Vec<String>,
}

impl DiskLink {
    pub(super) fn args(&self, index: usize, accel: Accel, emulator: &Emulator) -> Vec<String> {
        let socket = quoted(&self.socket.to_string_lossy());
        let vectors = emulator.vectors(accel, self.queues + 1);
        let mut device = format!(
            "vhost-user-blk-pci,chardev=disk{index},num-queues={},vectors={vectors}",
            self.queues
        );
        for option in &self.options {
            device.push(',');
            device.push_str(option);
        }
        let chardev = format!("socket,id=disk{index},path={socket},{}", emulator.reconnect());
        vec!["-chardev".into(), chardev, "-device".into(), device]
    }
}

/// One virtio network interface of a guest.
#[derive(Clone, Debug)]
pub struct Nic {
    /// The link that the interface is attached to.
    pub link: Link,
    /// Its address.
    pub mac: Mac,
    /// Queue pairs offered to the guest.
    pub queues: u16,
    /// QEMU's `virtio-net-pci` properties beyond the usual ones, such as `packed=on` or
    /// `mrg_rxbuf=off`.
    pub options: Vec<String>,
}

/// The link of an interface.
#[derive(Clone, Debug)]
pub enum Link {
    /// A vhost-user backend at this socket.
    VhostUser {
        /// The socket's path.
        socket: PathBuf,
        /// Whether QEMU creates the socket and the backend connects. Otherwise QEMU connects, and
        /// reconnects after the backend was gone.
        listens: bool,
    },
    /// A TAP device that is there already, in the guest's namespace.
    Tap {
        /// Its name.
        device: String,
    },
}

impl Nic {
    pub(super) fn args(&self, index: usize, accel: Accel, emulator: &Emulator) -> Vec<String> {
        let Nic { link, mac, queues, options } = self;
        let mut args = Vec::new();
        let mut device = format!("virtio-net-pci,netdev=net{index},mac={mac},rx_queue_size=1024");
        if *queues > 1 {
            device.push_str(",mq=on");
        }
        match link {
            Link::VhostUser { socket, listens } => {
                let socket = quoted(&socket.to_string_lossy());
                let role = if *listens { "server=on,wait=off" } else { emulator.reconnect() };
                args.extend([
                    "-chardev".into(),
                    format!("socket,id=vhost{index},path={socket},{role}"),
                ]);
                args.extend([
                    "-netdev".into(),
                    format!("vhost-user,id=net{index},chardev=vhost{index},queues={queues}"),
                ]);
                let vectors = emulator.vectors(accel, 2 * queues + 2);
                device.push_str(&format!(",tx_queue_size=1024,vectors={vectors}"));
            }
            Link::Tap { device: tap } => {
                let tap = quoted(tap);
                args.extend([
                    "-netdev".into(),
                    format!("tap,id=net{index},ifname={tap},script=no,downscript=no,vhost=off,queues={queues}"),
                ]);
                device.push_str(&format!(",vectors={}", 2 * queues + 2));
            }
        }
        for option in options {
            device.push(',');
            device.push_str(option);
        }
        args.extend(["-device".into(), device]);
        args
    }
}

/// A value in one of QEMU's comma-separated options.
pub(super) fn quoted(value: &str) -> String {
    value.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(link: Link, queues: u16) -> Nic {
        Nic { link, mac: Mac([0x52, 0x54, 0, 0, 0, 1]), queues, options: vec!["packed=on".into()] }
    }

    #[test]
    fn a_vhost_user_interface_has_no_vectors_where_qemu_would_crash() {
        let link = Link::VhostUser { socket: "/tmp/a,b".into(), listens: false };
        let old = Emulator::of_version(None, 7);
        let args = nic(link.clone(), 4).args(0, Accel::Tcg, &old);
        assert_eq!(args[1], "socket,id=vhost0,path=/tmp/a,,b,reconnect=1");
        assert_eq!(args[3], "vhost-user,id=net0,chardev=vhost0,queues=4");
        assert!(
            args[5].contains("mq=on")
                && args[5].contains("vectors=0")
                && args[5].ends_with(",packed=on"),
            "{args:?}"
        );
        let args = nic(link, 4).args(0, Accel::Tcg, &Emulator::of_version(None, 10));
        assert_eq!(args[1], "socket,id=vhost0,path=/tmp/a,,b,reconnect-ms=1000");
        assert!(args[5].contains("vectors=10"), "{args:?}");
    }

    #[test]
    fn an_interface_with_one_queue_is_not_multi_queue() {
        let old = Emulator::of_version(None, 7);
        let args =
            nic(Link::VhostUser { socket: "s".into(), listens: true }, 1).args(3, Accel::Kvm, &old);
        assert!(
            args[1].ends_with("server=on,wait=off")
                && !args[5].contains("mq=on")
                && args[5].contains("vectors=4"),
            "{args:?}"
        );
        let args = nic(Link::Tap { device: "t0".into() }, 1).args(3, Accel::Kvm, &old);
        assert!(args[1].starts_with("tap,id=net3,ifname=t0,"), "{args:?}");
    }
}
