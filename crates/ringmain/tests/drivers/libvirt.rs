//! A domain of libvirt with the interface and the disk that the pages print. `virsh` runs libvirt's
//! driver itself, in a folder of the test's own; the domain lives as long as `virsh`.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use control::api::PortState;
use lab::daemon::Daemon;
use lab::guest::ChildProcess;

use super::{daemon, port, wait};

/// Debian's.
const GROUP: &str = "libvirt-qemu";

/// What a page prints from `<start` up to `</end>`.
fn printed(page: &str, start: &str, end: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(path).unwrap();
    let from = text.find(start).unwrap_or_else(|| panic!("{page} has no {start}"));
    let to = from + text[from..].find(end).unwrap() + end.len();
    text[from..to].to_owned()
}

/// The domain of docs/guests.md with the disk of docs/disks.md, completed to one that can start
/// here.
fn domain(dir: &Path) -> String {
    let disk = printed("disks.md", "<disk type='vhostuser'", "</disk>");
    let with = |text: String, from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        text.replace(from, to)
    };
    let xml = printed("guests.md", "<domain type='kvm'>", "</domain>");
    let head = "<domain type='qemu'><name>vm</name><memory unit='MiB'>256</memory><vcpu>4</vcpu>\
                <os><type arch='x86_64' machine='pc'>hvm</type></os>";
    let xml = with(xml, "<domain type='kvm'>", head);
    let xml = with(xml, "</devices>", &format!("{disk}</devices>"));
    let at = |name: &str| dir.join(name).display().to_string();
    let xml = with(xml, "/run/ringmain/vm-a.sock", &at("vm-a"));
    with(xml, "/run/ringmain/vm1-root.sock", &at("root"))
}

fn connected(daemon: &Daemon) -> bool {
    let stats = daemon.stats().unwrap();
    stats.ports[0].state == PortState::Connected && stats.disks[0].state.name() == "connected"
}

#[test]
#[ignore = "needs libvirt"]
fn a_domain_as_the_pages_print_it_starts_and_reconnects() {
    let access = format!("socket-mode = \"660\"\nsocket-group = \"{GROUP}\"\nqueues = 4\n");
    let config = |dir: &Path| {
        // QEMU is another user.
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        let (socket, image) = (dir.join("root"), dir.join("root.raw"));
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        fs::set_permissions(&image, Permissions::from_mode(0o666)).unwrap();
        port(dir, "vm-a", &access)
            + &format!(
                "[[disk]]\nname = \"root\"\nkind = \"vhost-user\"\nsocket = {socket:?}\n\
                 image = {image:?}\n{access}"
            )
    };
    let mut daemon = daemon(config, None);
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    // Else a daemon of libvirt keeps the domain's log.
    fs::write(root.path().join("etc/qemu.conf"), "stdio_handler = \"file\"\n").unwrap();
    let file = root.path().join("domain.xml");
    fs::write(&file, domain(daemon.dir())).unwrap();
    let log = root.path().join("said");
    let said = fs::File::create(&log).unwrap();
    let mut command = ChildProcess::command("virsh");
    command.args(["-c", &format!("qemu:///embed?root={}", root.path().display())]);
    command.stdin(Stdio::piped()).stdout(said.try_clone().unwrap()).stderr(said);
    let mut virsh = ChildProcess::start(&mut command).unwrap();
    let mut input = virsh.child().stdin.take().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    writeln!(input, "create {}", file.display()).unwrap();
    wait("the domain", || said().contains("Domain 'vm' created"), said);
    wait("its connections", || connected(&daemon), said);
    let peer = daemon.stats().unwrap().ports[0].peer;
    daemon.kill_and_start().unwrap();
    wait("new connections", || connected(&daemon), said);
    assert_eq!(daemon.stats().unwrap().ports[0].peer, peer, "the same QEMU");
    writeln!(input, "destroy vm").unwrap();
    wait("its end", || said().contains("Domain 'vm' destroyed"), said);
}
