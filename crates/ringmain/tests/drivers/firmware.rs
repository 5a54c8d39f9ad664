//! Firmware that takes DHCP and TFTP from a dnsmasq on a TAP port. The drivers are iPXE's (legacy
//! virtio, in the device's option ROM) and that of EDK II (OVMF).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::daemon::is_balanced;
use lab::guest::{ChildProcess, Namespace};

use super::{daemon, port, wait};

const UEFI: &str = "/usr/share/ovmf/OVMF.fd";
const MAC: &str = "52:54:00:77:00:01";
/// Of the file that UEFI fetches: many datagrams, in lock-step.
const BYTES: usize = 300_000;

fn dnsmasq(host: &Namespace, folder: &Path, boot: &str) -> (ChildProcess, PathBuf) {
    let log = folder.join("dnsmasq.log");
    let mut command = host.command("dnsmasq");
    command.args([
        "--no-daemon",
        "--port=0",
        "--interface=rm0",
        "--bind-interfaces",
        "--user=root",
    ]);
    command.args(["--conf-file=/dev/null", "--dhcp-range=10.77.0.10,10.77.0.20,255.255.255.0"]);
    command.args(["--enable-tftp", &format!("--tftp-root={}", folder.display())]);
    command.arg(format!("--dhcp-leasefile={}", folder.join("leases").display()));
    command.arg(format!("--dhcp-boot={boot}"));
    let file = std::fs::File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    (ChildProcess::start(&mut command).unwrap(), log)
}

fn qemu(socket: &Path, device: &str, more: &[&str]) -> Command {
    let mut command = ChildProcess::command("qemu-system-x86_64");
    command.args(["-accel", "tcg", "-nodefaults", "-display", "none", "-m", "256", "-boot", "n"]);
    command.args(["-object", "memory-backend-memfd,id=m,size=256M,share=on", "-numa"]);
    command.args(["node,memdev=m", "-chardev"]);
    command.arg(format!("socket,id=c0,path={}", socket.display()));
    command.args(["-netdev", "vhost-user,id=n0,chardev=c0", "-device"]);
    command.arg(format!("virtio-net-pci,netdev=n0,vectors=0,mac={MAC}{device}")).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A firmware boots from the network: it fetches `boot`, and then all of `files`.
fn boots(device: &str, more: &[&str], boot: &str, files: &[&str]) {
    let host = Namespace::new().unwrap();
    let config = |dir: &Path| {
        port(dir, "vm", "") + "[[port]]\nname = \"host\"\nkind = \"tap\"\ndevice = \"rm0\"\n"
    };
    let daemon = daemon(config, Some(&host));
    host.ip("addr add 10.77.0.1/24 dev rm0\nlink set rm0 up").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = "#!ipxe\nimgfetch tftp://${next-server}/next\n";
    std::fs::write(folder.path().join("script.ipxe"), script).unwrap();
    std::fs::write(folder.path().join("next"), "fetched by the script").unwrap();
    std::fs::write(folder.path().join("image.efi"), vec![7; BYTES]).unwrap();
    let (_server, log) = dnsmasq(&host, folder.path(), boot);
    let said = || std::fs::read_to_string(&log).unwrap();
    wait("dnsmasq", || said().contains("TFTP root"), said);
    let socket = daemon.dir().join("vm");
    let _qemu = ChildProcess::start(&mut qemu(&socket, device, more)).unwrap();
    wait("a lease", || said().contains("DHCPACK(rm0) 10.77.0."), said);
    assert!(said().contains(MAC), "{}", said());
    for file in files {
        let sent = format!("sent {}", folder.path().join(file).display());
        wait(file, || said().contains(&sent), said);
    }
    wait("the counters", || is_balanced(&daemon.stats().unwrap()), || daemon.log());
}

#[test]
#[ignore = "needs QEMU and dnsmasq"]
fn ipxe_boots_by_its_legacy_driver() {
    let files = ["script.ipxe", "next"];
    boots(",disable-modern=on,disable-legacy=off", &[], "script.ipxe", &files);
}

#[test]
#[ignore = "needs QEMU, OVMF and dnsmasq"]
fn a_uefi_firmware_boots_by_its_own_driver() {
    boots(",romfile=", &["-bios", UEFI], "image.efi", &["image.efi"]);
}
