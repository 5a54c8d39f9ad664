//! Checks that this host has the objects that a configuration names, as far as possible without
//! putting a port into service.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use ::storage::Image;
use hostlink::route_socket::{LinkKind, link_kind};
use hostlink::underlay::{Transport, path_mtu};
use rustix::fs::{Access, PROC_SUPER_MAGIC, access, statfs};

use crate::config::{Config, MetricsSpec, Mode, OverlaySpec, PortKind};

/// The tun driver's device.
const TUN: &str = "/dev/net/tun";

/// The devices, files and addresses that are missing or cannot be used: a line for each problem.
pub fn check(config: &Config) -> Vec<String> {
    let control = socket(&config.socket).map(|problem| format!("control.socket: {problem}"));
    let metrics = config.metrics.as_ref().and_then(MetricsSpec::path).and_then(|path| socket(path));
    let metrics = metrics.map(|problem| format!("metrics.listen: {problem}"));
    let ports = config.ports.iter().filter_map(|port| {
        let problem = match &port.kind {
            // A client only connects.
            PortKind::VhostUser { mode: Mode::Client, .. } => None,
            PortKind::VhostUser { socket: path, .. } => socket(path),
            PortKind::Tap { device } => tap(device),
            PortKind::Xen => no_xen(),
            PortKind::Embedded { socket: path, device_queue, .. } => socket(path).or_else(|| {
                let device = device_queue.as_deref();
                device.and_then(|device| interface("device-queue", device))
            }),
        };
        Some(format!("port {:?}: {}", port.name, problem?))
    });
    let overlays = config.overlays.iter().filter_map(|overlay| {
        let problem = underlay(overlay)?;
        Some(format!("overlay {:?}: {problem}", overlay.name))
    });
    let disks = config.disks.iter().filter_map(|disk| {
        let problem = socket(&disk.socket).or_else(|| {
            let checked = Image::check(&disk.image_options());
            checked.err().map(|error| error.to_string())
        });
        Some(format!("disk {:?}: {}", disk.name, problem?))
    });
    let xen = config.xen_disks.iter().filter_map(|xen| {
        let missing = xen.folders.iter().find(|folder| !folder.exists());
        let problem = missing.map(|folder| format!("there is no {}", folder.display()));
        let problem = problem.or_else(no_xen);
        Some(format!("disk {:?}: {}", xen.name, problem?))
    });
    control
        .into_iter()
        .chain(metrics)
        .chain(ports)
        .chain(overlays)
        .chain(disks)
        .chain(xen)
        .collect()
}

/// Why this is no Xen host.
fn no_xen() -> Option<String> {
    hypervisor::xen::open().err().map(|error| format!("Xen can't be used: {error}"))
}

/// Why no socket can be created at `path`. Missing directories above it would be created.
fn socket(path: &Path) -> Option<String> {
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            return Some(format!("{} exists and is not a socket: remove it", path.display()));
        }
        _ => {}
    }
    let parents = path.ancestors().skip(1).map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    });
    let directory = parents.into_iter().find(|parent| fs::symlink_metadata(parent).is_ok())?;
    if !directory.is_dir() {
        return Some(format!("{} is not a directory", directory.display()));
    }
    let why = match access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        Err(error) => std::io::Error::from(error).to_string(),
        // Root has the right to write there, but the kernel does not allow new files.
        Ok(()) if is_of_kernel(directory) => "it is the kernel's own file system".to_owned(),
        Ok(()) => return None,
    };
    Some(format!("cannot create {} in {}: {why}", path.display(), directory.display()))
}

/// The number of sysfs in `statfs`.
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// Whether a folder shows the state of the kernel, so that nothing can be created there.
fn is_of_kernel(folder: &Path) -> bool {
    let kind = statfs(folder).map(|found| found.f_type as u64);
    kind.is_ok_and(|kind| kind == PROC_SUPER_MAGIC as u64 || kind == SYSFS_MAGIC)
}

/// Why an interface cannot be a multi-queue TAP.
fn tap(device: &str) -> Option<String> {
    if let Err(error) = access(TUN, Access::READ_OK | Access::WRITE_OK) {
        let error = std::io::Error::from(error);
        return Some(format!("{TUN}: {error}; load the tun module, or run this as root"));
    }
    match link_kind(device) {
        Ok(None | Some(LinkKind::MultiQueueTap(_))) => None,
        Ok(Some(LinkKind::Other)) => Some(format!(
            "{device:?} is an interface that is no multi-queue TAP; give another name: the daemon \
             creates the interface"
        )),
        Err(error) => Some(format!("cannot look up the interface {device:?}: {error}")),
    }
}

/// Why the sockets of an overlay cannot be used. The port itself is not opened: a daemon may use
/// it.
fn underlay(overlay: &OverlaySpec) -> Option<String> {
    let local = overlay.local.ip();
    let used = UdpSocket::bind(SocketAddr::new(local, 0));
    match (&overlay.transport, used) {
        (Transport::Sockets | Transport::Card(_), Ok(_)) | (Transport::Tap(_), Err(_)) => {}
        (Transport::Sockets | Transport::Card(_), Err(error)) => {
            return Some(format!(
                "local: {local} can't be used: {error}; give an address of this host"
            ));
        }
        (Transport::Tap(_), Ok(_)) => {
            return Some(format!(
                "local: {local} is an address of an interface; with underlay = \"tap\", give one \
                 that no interface has"
            ));
        }
    }
    if let Transport::Tap(device) = &overlay.transport {
        let problem = tap(device).map(|problem| format!("device: {problem}"));
        if problem.is_some() {
            return problem;
        }
        let setting = forwarding(local);
        if fs::read_to_string(setting).is_ok_and(|value| value.trim() == "0") {
            return Some(format!(
                "underlay: this host does not forward packets to {device}: write 1 to {setting}"
            ));
        }
    }
    if let Transport::Card(device) = &overlay.transport
        && let Some(problem) = interface("device", device)
    {
        return Some(problem);
    }
    overlay.peers.iter().find_map(|peer| {
        let error = path_mtu(local, SocketAddr::new(*peer, overlay.local.port())).err()?;
        Some(format!("peers: there is no way to {peer}: {error}"))
    })
}

/// The file that says whether this host forwards packets of the address's family.
fn forwarding(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "/proc/sys/net/ipv4/conf/all/forwarding",
        IpAddr::V6(_) => "/proc/sys/net/ipv6/conf/all/forwarding",
    }
}

/// Why an interface has no queues for guests or overlays. `key` names it in the configuration.
fn interface(key: &str, device: &str) -> Option<String> {
    match link_kind(device) {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("{key}: there is no interface {device:?}")),
        Err(error) => Some(format!("{key}: cannot look up the interface {device:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_needs_a_directory_or_room_for_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(socket(&directory.path().join("new/a.sock")), None);
        assert!(socket(&file).unwrap().ends_with("exists and is not a socket: remove it"));
        assert!(socket(&file.join("a.sock")).unwrap().ends_with("is not a directory"));
        for place in ["/proc/nope", "/sys/nope"] {
            let path = Path::new(place).join("a.sock");
            assert!(socket(&path).unwrap().starts_with("cannot create "), "{place}");
        }
    }

    #[test]
    fn only_a_tap_is_a_tap() {
        if access(TUN, Access::READ_OK | Access::WRITE_OK).is_ok() {
            assert!(tap("lo").unwrap().starts_with("\"lo\" is an interface"));
            assert_eq!(tap("rm-nowhere"), None);
        }
        let problem = |name| interface("device-queue", name);
        assert!(problem("rm-nowhere").is_some() && problem("lo").is_none());
    }
}
