//! Each thread of a running daemon does what each layer forbids, and fails. The daemons have one
//! layer each, so that no other one hides that a layer is missing; one daemon has none, and there
//! the same calls succeed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::libc::{self, c_long};
use tempfile::TempDir;

use super::daemon::{Served, Status, filters_of};
use super::tracee::{Outcome, Tracee};

/// All layers.
const LAYERS: [&str; 7] = [
    "ipc-namespace",
    "mount-namespace",
    "no-new-privileges",
    "landlock",
    "user",
    "capabilities",
    "seccomp",
];

/// A system call, with a text as its second argument in place of the number, if there is one.
#[derive(Clone, Copy)]
struct Call<'a> {
    number: c_long,
    arguments: [u64; 4],
    text: Option<&'a str>,
}

impl Call<'_> {
    const fn new(number: c_long, arguments: [u64; 4]) -> Self {
        Call { number, arguments, text: None }
    }

    /// Opens a file to read it.
    fn open(path: &str) -> Call<'_> {
        let here = libc::AT_FDCWD as u64;
        Call { text: Some(path), ..Call::new(libc::SYS_openat, [here, 0, 0, 0]) }
    }
}

/// A daemon with these layers only. `None`: this host does not have one of them.
fn with_layers(layers: &[&str]) -> Option<Served> {
    let without = LAYERS.iter().filter(|layer| !layers.contains(layer));
    let without: Vec<String> = without.map(|layer| format!("{layer:?}")).collect();
    let served = Served::start(&format!("without = [{}]", without.join(", ")));
    layers.iter().all(|layer| served.has(layer)).then_some(served)
}

/// The outcome of a call in each thread, with the thread's name.
fn in_each_thread(served: &Served, call: Call<'_>) -> Vec<(String, Outcome)> {
    let id = |thread: &Status| thread["Pid"].parse::<i32>().unwrap();
    let process = served.daemon.id();
    // The addresses are those of all threads. Some thread waits, which is a call.
    let instruction = served
        .threads()
        .iter()
        .find_map(|thread| Tracee::stop(process, id(thread))?.instruction())
        .unwrap();
    let outcome = |thread: &Status| {
        let tracee = Tracee::stop(process, id(thread))?;
        let mut arguments = call.arguments;
        if let Some(text) = call.text {
            arguments[1] = tracee.put(text);
        }
        let outcome = tracee.call(instruction, call.number, arguments);
        if let (libc::SYS_openat, Outcome::Done(file)) = (call.number, outcome) {
            tracee.call(instruction, libc::SYS_close, [file as u64, 0, 0, 0]);
        }
        Some((thread["Name"].clone(), outcome))
    };
    let outcomes: Vec<_> = served.threads().iter().filter_map(outcome).collect();
    assert!(outcomes.len() >= super::daemon::KINDS.len());
    outcomes
}

/// In each thread, the call has this outcome.
fn has_outcome(served: &Served, call: Call<'_>, want: Outcome) {
    let wrong = |(_, outcome): &(String, Outcome)| *outcome != want;
    let wrong: Vec<_> = in_each_thread(served, call).into_iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "call {} should be {want:?}: {wrong:?}", call.number);
}

/// In each thread, the call succeeds.
fn succeeds(served: &Served, call: Call<'_>) {
    for (name, outcome) in in_each_thread(served, call) {
        assert!(matches!(outcome, Outcome::Done(_)), "{name}: call {}: {outcome:?}", call.number);
    }
}

fn failed(error: i32) -> Outcome {
    Outcome::Failed(error)
}

/// A file that everybody may read, outside of all folders of sockets.
fn outside() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

/// A set of semaphores, which goes with this value.
struct Semaphores(u64);

impl Semaphores {
    fn new() -> Option<Semaphores> {
        let made = Command::new("ipcmk").args(["-S", "1"]).output().ok()?;
        let text = String::from_utf8_lossy(&made.stdout).into_owned();
        text.split_whitespace().last()?.parse().ok().map(Semaphores)
    }

    /// Reads the first of them.
    fn read(&self) -> Call<'static> {
        const GETVAL: u64 = 12;
        Call::new(libc::SYS_semctl, [self.0, 0, GETVAL, 0])
    }
}

impl Drop for Semaphores {
    fn drop(&mut self) {
        let _ = Command::new("ipcrm").args(["-s", &self.0.to_string()]).status();
    }
}

const IS_UNPRIVILEGED: Call<'static> =
    Call::new(libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS as u64, 0, 0, 0]);
const BECOME_ROOT: Call<'static> = Call::new(libc::SYS_setresuid, [0, 0, 0, 0]);
/// Needs a capability, and changes nothing.
const SET_NO_GROUPS: Call<'static> = Call::new(libc::SYS_setgroups, [0, 0, 0, 0]);

/// Signal 0 only asks whether a signal may be sent, here to the test.
fn signal() -> Call<'static> {
    Call::new(libc::SYS_kill, [u64::from(std::process::id()), 0, 0, 0])
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("SKIPPED IN PART: this needs root");
    }
    root
}

#[test]
fn without_layers_each_thread_does_what_they_forbid() {
    let (_folder, file) = outside();
    let served = Served::start("enabled = false");
    for call in [Call::open(&file), signal()] {
        succeeds(&served, call);
    }
    has_outcome(&served, IS_UNPRIVILEGED, Outcome::Done(0));
    if is_root() {
        succeeds(&served, BECOME_ROOT);
        succeeds(&served, SET_NO_GROUPS);
        Semaphores::new().iter().for_each(|set| succeeds(&served, set.read()));
    }
}

#[test]
fn landlock_holds_in_each_thread() {
    let (_folder, file) = outside();
    let Some(served) = with_layers(&["no-new-privileges", "landlock"]) else { return };
    has_outcome(&served, IS_UNPRIVILEGED, Outcome::Done(1));
    has_outcome(&served, Call::open(&file), failed(libc::EACCES));
    has_outcome(&served, signal(), failed(libc::EPERM));
}

#[test]
fn namespaces_hold_in_each_thread() {
    if !is_root() {
        return;
    }
    let (_folder, file) = outside();
    if let Some(served) = with_layers(&["mount-namespace"]) {
        has_outcome(&served, Call::open(&file), failed(libc::ENOENT));
    }
    let Some(set) = Semaphores::new() else {
        return println!("SKIPPED IN PART: this host has no semaphores, or no ipcmk");
    };
    if let Some(served) = with_layers(&["ipc-namespace"]) {
        has_outcome(&served, set.read(), failed(libc::EINVAL));
    }
}

#[test]
fn each_thread_has_another_user_without_capabilities() {
    if !is_root() {
        return;
    }
    if let Some(served) = with_layers(&["user", "capabilities"]) {
        has_outcome(&served, BECOME_ROOT, failed(libc::EPERM));
    }
    // Of root, too.
    if let Some(served) = with_layers(&["capabilities"]) {
        has_outcome(&served, SET_NO_GROUPS, failed(libc::EPERM));
    }
}

/// Calls that no filter allows, and that do nothing where they are allowed.
const NOWHERE: [Call<'static>; 16] = [
    Call::new(libc::SYS_execve, [0; 4]),
    Call::new(libc::SYS_execveat, [0; 4]),
    Call::new(libc::SYS_ptrace, [u64::MAX, 0, 0, 0]),
    Call::new(libc::SYS_process_vm_readv, [0; 4]),
    Call::new(libc::SYS_kill, [1, 0, 0, 0]),
    Call::new(libc::SYS_setresuid, [0; 4]),
    Call::new(libc::SYS_setgroups, [0; 4]),
    Call::new(libc::SYS_unshare, [0; 4]),
    Call::new(libc::SYS_setns, [u64::MAX, 0, 0, 0]),
    Call::new(libc::SYS_mount, [0; 4]),
    Call::new(libc::SYS_bpf, [u64::MAX, 0, 0, 0]),
    Call::new(libc::SYS_init_module, [0; 4]),
    Call::new(libc::SYS_open_by_handle_at, [u64::MAX, 0, 0, 0]),
    Call::new(libc::SYS_semctl, [u64::MAX, 0, 0, 0]),
    // An Internet socket.
    Call::new(libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0]),
    // Memory that can be executed.
    Call::new(libc::SYS_mmap, [0, 4096, libc::PROT_EXEC as u64, libc::MAP_PRIVATE as u64]),
];

/// Calls that only threads without a filter of their own may make. Their arguments are bad.
const CONTROL: [Call<'static>; 4] = [
    Call::new(libc::SYS_bind, [u64::MAX, 0, 0, 0]),
    Call::new(libc::SYS_listen, [u64::MAX, 0, 0, 0]),
    Call::new(libc::SYS_fchown, [u64::MAX, 0, 0, 0]),
    Call::new(libc::SYS_io_uring_setup, [0; 4]),
];

#[test]
fn filters_hold_in_each_thread() {
    let Some(served) = with_layers(&["no-new-privileges", "seccomp"]) else { return };
    for call in NOWHERE {
        has_outcome(&served, call, Outcome::Forbidden);
    }
    for call in CONTROL {
        for (name, outcome) in in_each_thread(&served, call) {
            let forbidden = filters_of(&name) != Some(0);
            assert_eq!(
                outcome == Outcome::Forbidden,
                forbidden,
                "{name}: call {}: {outcome:?}",
                call.number
            );
        }
    }
    // The daemon has survived all of this.
    served.daemon.stats().unwrap();
}
