//! Does what each layer forbids, in each kind of thread, and sees it fail.
//!
//! Each case runs in a process of its own: this executable once more, in a part that a variable of
//! its environment names. A layer that this host does not offer is named, and its cases are
//! skipped.

mod filters;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path as FsPath;
use std::process::{Command, Output};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use sandbox::{
    Access, Extras, Group, Layer, LayerState, Owner, Path, Plan, Role, User, enter_thread,
};
use tempfile::TempDir;

/// The part: a layer, a kind of thread, what it does, and a folder that it may use.
const PART: &str = "SANDBOX_TEST_PART";
const KINDS: [&str; 6] = ["control", "worker", "helper", "task", "front-end", "acceptor"];
const NOBODY: u32 = 65534;
/// Stands among the layers of a process that serves disks.
const DISKS: &str = "disks";
const FILTERS: &str = "seccomp,no-new-privileges";
/// Begins the line that says that a layer is missing.
const MISSING: &str = "missing: ";

/// A case in its own process. As a test of its own it does nothing.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let words: Vec<&str> = part.splitn(4, ' ').collect();
    let [layers, kind, action, folder] = words[..] else { panic!("{part}") };
    enter(layers, action, FsPath::new(folder));
    let (kind, action, folder) = (kind.to_owned(), action.to_owned(), folder.to_owned());
    let name = format!("test-{kind}");
    let run = move || {
        match kind.as_str() {
            "worker" => enter_thread(Role::Worker),
            "helper" => enter_thread(Role::Helper),
            "task" => enter_thread(Role::Task),
            "front-end" => enter_thread(Role::FrontEnd),
            "acceptor" => enter_thread(Role::Acceptor),
            _ => {}
        }
        say(&match act(&action, FsPath::new(&folder)) {
            Ok(text) => format!("done {text}"),
            Err(error) => format!("error {}", error.raw_os_error().unwrap_or(-1)),
        });
        // Ending the thread in an orderly way is no call that helpers need.
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    };
    std::thread::Builder::new().name(name).spawn(run).unwrap().join().unwrap();
}

/// Prints a line by one call.
fn say(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the bytes are there.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

/// Enters the layers that are named, separated by commas. Older kernels have only the part of
/// Landlock that is about paths.
fn enter(layers: &str, action: &str, folder: &FsPath) {
    let beyond_paths = ["bind-tcp", "abstract-socket", "signal"];
    let beyond_paths = beyond_paths.iter().any(|other| action.starts_with(other));
    let wanted: Vec<&str> = layers.split(',').collect();
    let without = Layer::ALL.into_iter().filter(|layer| !wanted.contains(&layer.name())).collect();
    let user = User { name: "nobody".into(), uid: NOBODY, gid: NOBODY };
    let paths = vec![
        Path { path: folder.join("sockets"), access: Access::Sockets },
        Path { path: folder.join("images"), access: Access::Images },
        Path { path: "/proc".into(), access: Access::Read },
    ];
    let plan = Plan {
        user: Ok(user),
        groups: Vec::new(),
        capabilities: Vec::new(),
        paths,
        extras: Extras { disks: wanted.contains(&DISKS), ..Extras::default() },
        without,
    };
    // Known from here on.
    Owner::find("root").unwrap();
    Group::find("root").unwrap();
    for report in plan.enter().layers {
        let lacks = match &report.state {
            LayerState::Active(_) => false,
            LayerState::Partial(_) => beyond_paths,
            LayerState::Missing(_) => wanted.contains(&report.layer.name()),
        };
        if lacks {
            say(&format!("{MISSING}{}: {}", report.layer.name(), report.state.detail()));
            std::process::exit(0);
        }
    }
}

/// Does something that a layer forbids.
fn act(action: &str, folder: &FsPath) -> io::Result<String> {
    let secret = folder.join("secret");
    match action.split_once('=').unwrap_or((action, "")) {
        ("call", numbers) => call(numbers),
        ("read-outside", _) => fs::read_to_string(secret),
        ("create-file", _) => fs::write(folder.join("sockets/file"), "").map(|()| String::new()),
        ("open-device", place) => {
            let device = folder.join(place).join("null");
            fs::File::options().read(true).write(true).open(device).map(|_| String::new())
        }
        ("create-socket", _) => UnixListener::bind(folder.join("sockets/s")).map(|_| String::new()),
        ("write-root", _) => fs::write("/file", "").map(|()| String::new()),
        ("bind-tcp", _) => std::net::TcpListener::bind("127.0.0.1:0").map(|_| String::new()),
        ("abstract-socket", name) => abstract_socket(name),
        ("signal", pid) => {
            let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
            Ok(rustix::process::test_kill_process(pid).map(|()| String::new())?)
        }
        ("chown", _) => {
            std::os::unix::fs::chown(folder.join("sockets"), Some(1), None).map(|()| String::new())
        }
        ("become-root", _) => {
            let root = rustix::process::Uid::ROOT;
            Ok(rustix::thread::set_thread_uid(root).map(|()| String::new())?)
        }
        ("names", _) => Ok(names()),
        ("semaphores", key) => semaphores(key.parse().unwrap(), 0).map(|id| id.to_string()),
        ("set-user-id", _) => {
            let output = Command::new(folder.join("open/id")).arg("-u").output()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        _ => panic!("{action}"),
    }
}

/// Which users and groups are known: root, which was looked up before, another one, and numbers.
fn names() -> String {
    let users = ["root", "daemon", "4000123"].map(|name| Owner::find(name).is_ok());
    let groups = ["root", "daemon", "4000123"].map(|name| Group::find(name).is_ok());
    format!("{users:?} {groups:?}")
}

/// Makes a system call: its number, then its arguments.
fn call(numbers: &str) -> io::Result<String> {
    let mut numbers = numbers.split(':').map(|number| number.parse::<libc::c_long>().unwrap());
    let mut next = || numbers.next().unwrap_or(0);
    let (number, a, b, c) = (next(), next(), next(), next());
    // SAFETY: the calls of these tests are forbidden, or are harmless with such arguments.
    match unsafe { libc::syscall(number, a, b, c, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(String::new()),
    }
}

fn abstract_socket(name: &str) -> io::Result<String> {
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    UnixStream::connect_addr(&address).map(|_| String::new())
}

/// The set of semaphores with this key.
fn semaphores(key: i32, flags: i32) -> io::Result<i32> {
    // SAFETY: takes numbers.
    match unsafe { libc::semget(key, 1, flags) } {
        -1 => Err(io::Error::last_os_error()),
        id => Ok(id),
    }
}

/// A folder with one for sockets, a file beside it, and one that everybody may enter.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("sockets", 0o777), ("images", 0o777), ("open", 0o755)] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let secret = folder.path().join("secret");
    fs::File::create(&secret).unwrap().write_all(b"secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

/// Runs a case. `None`: this host does not have the layer, which was printed.
fn run(layers: &str, kind: &str, action: &str, folder: &FsPath) -> Option<Output> {
    let part = format!("{layers} {kind} {action} {}", folder.display());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "part", "--nocapture", "--test-threads=1"]).env(PART, &part);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(line) = text.lines().find_map(|line| line.split_once(MISSING)) {
        println!("skipped: {} in a {kind} thread: {}", action, line.1);
        return None;
    }
    Some(output)
}

/// Runs a case in each kind of thread, which must end with this line.
fn fails(layers: &str, action: &str, want: &str) {
    outcome(layers, action, |text| text.lines().any(|line| line.ends_with(want)), want);
}

fn outcome(layers: &str, action: &str, is_right: impl Fn(&str) -> bool, want: &str) {
    for kind in KINDS {
        let folder = folder();
        let Some(output) = run(layers, kind, action, folder.path()) else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(is_right(&text), "{layers}, {kind}, {action}: want {want}, got {text}{error}");
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: this needs root");
    }
    root
}

fn errno(errno: rustix::io::Errno) -> String {
    format!("error {}", errno.raw_os_error())
}

/// Runs a call in one kind of thread, which must be killed for it, by name.
fn is_killed(kind: &str, number: libc::c_long, arguments: &str) {
    is_killed_with(FILTERS, kind, number, arguments);
}

fn is_killed_with(layers: &str, kind: &str, number: libc::c_long, arguments: &str) {
    let folder = folder();
    let action = format!("call={number}{arguments}");
    let Some(output) = run(layers, kind, &action, folder.path()) else { return };
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{kind}, {action}: {error}");
    let want =
        format!("ringmain: sandbox: thread \"test-{kind}\" made system call {number}, which");
    assert!(error.contains(&want), "{kind}, {action}: {error}");
}

#[test]
fn landlock_forbids_what_is_outside_its_paths() {
    let denied = errno(rustix::io::Errno::ACCESS);
    fails("landlock,no-new-privileges", "read-outside", &denied);
    fails("landlock,no-new-privileges", "create-file", &denied);
    fails("landlock,no-new-privileges", "create-socket", "done ");
    fails("landlock,no-new-privileges", "bind-tcp", &denied);
}

#[test]
fn landlock_forbids_signals_and_abstract_sockets_of_others() {
    use std::os::linux::net::SocketAddrExt;
    let denied = errno(rustix::io::Errno::PERM);
    let name = format!("ringmain-sandbox-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    fails("landlock,no-new-privileges", &format!("abstract-socket={name}"), &denied);
    fails("landlock,no-new-privileges", &format!("signal={}", std::process::id()), &denied);
}

#[test]
fn another_root_has_nothing_but_the_paths() {
    if !is_root() {
        return;
    }
    fails("mount-namespace", "read-outside", &errno(rustix::io::Errno::NOENT));
    fails("mount-namespace", "write-root", &errno(rustix::io::Errno::ROFS));
    fails("mount-namespace", "create-socket", "done ");
}

#[test]
fn devices_can_be_images_where_images_are() {
    if !is_root() {
        return;
    }
    for (place, want) in [("images", "done ".into()), ("sockets", errno(Errno::ACCESS))] {
        let folder = folder();
        let (kind, mode) = (FileType::CharacterDevice, Mode::from(0o600));
        let device = folder.path().join(place).join("null");
        if let Err(error) = mknodat(CWD, &device, kind, mode, makedev(1, 3)) {
            return println!("skipped: no device can be made here: {error}");
        }
        let layers = "mount-namespace,landlock,no-new-privileges";
        let action = format!("open-device={place}");
        let Some(output) = run(layers, "control", &action, folder.path()) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.lines().any(|line| line.ends_with(&want)), "{place}: {text}");
    }
}

#[test]
fn another_user_has_none_of_roots_rights() {
    if !is_root() {
        return;
    }
    fails("user,capabilities", "read-outside", "error 13");
    fails("user,capabilities", "become-root", "error 1");
}

#[test]
fn without_capabilities_root_is_an_ordinary_user() {
    if !is_root() {
        return;
    }
    fails("capabilities", "chown", &errno(rustix::io::Errno::PERM));
    fails("capabilities", &format!("call={}", libc::SYS_vhangup), "error 1");
}

#[test]
fn semaphores_of_others_are_in_another_namespace() {
    if !is_root() {
        return;
    }
    let key = 0x726d_0000 + (std::process::id() as i32 & 0xffff);
    let id = match semaphores(key, libc::IPC_CREAT | libc::IPC_EXCL | 0o600) {
        Ok(id) => id,
        Err(error) => return println!("skipped: this host has no semaphores: {error}"),
    };
    let seen = std::panic::catch_unwind(|| {
        fails("ipc-namespace", &format!("semaphores={key}"), &errno(rustix::io::Errno::NOENT));
    });
    // SAFETY: removes what was created above.
    unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
    seen.unwrap();
}

#[test]
fn programs_with_set_user_id_give_nothing() {
    if !is_root() {
        return;
    }
    let Some(id) = ["/usr/bin/id", "/bin/id"].into_iter().find(|path| FsPath::new(path).exists())
    else {
        return println!("skipped: this host has no program id");
    };
    for kind in KINDS {
        let folder = folder();
        let copy = folder.path().join("open/id");
        fs::copy(id, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
        let layers = "user,capabilities,no-new-privileges";
        let Some(output) = run(layers, kind, "set-user-id", folder.path()) else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("done {NOBODY}")), "{kind}: {text}");
    }
}

/// All layers at once: what the daemon has.
#[test]
fn all_layers_go_together() {
    let layers: Vec<&str> = Layer::ALL.iter().map(|layer| layer.name()).collect();
    let folder = folder();
    let Some(output) = run(&layers.join(","), "control", "create-socket", folder.path()) else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("done "), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(folder.path().join("sockets/s").exists());
}
