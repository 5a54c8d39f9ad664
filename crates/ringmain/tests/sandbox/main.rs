//! Each thread of a running daemon has the filter of its kind and no rights left, and fails to do
//! what each layer forbids. What each filter forbids in detail is shown by the tests of the crate
//! `sandbox`.

mod daemon;
#[cfg(target_arch = "x86_64")]
mod forbidden;
#[cfg(target_arch = "x86_64")]
mod tracee;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use daemon::{Served, Status, filters_of};
use lab::daemon::Daemon;

#[test]
fn every_thread_has_the_filter_of_its_kind_and_no_rights() {
    let served = Served::start("");
    if served.has("seccomp") {
        // A thread that has just started has neither its name nor its filter yet.
        served.eventually(|| wrong_filters(&served.threads(), served.daemon.id()));
    }
    let layers = ["no-new-privileges", "capabilities", "user"];
    let [no_new_privileges, capabilities, user] = layers.map(|layer| served.has(layer));
    for thread in served.threads() {
        if no_new_privileges {
            assert_eq!(thread["NoNewPrivs"], "1", "{thread:?}");
        }
        if capabilities {
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(thread[set], "0000000000000000", "{thread:?}");
            }
        }
        if user {
            assert!(!thread["Uid"].split('\t').any(|id| id == "0"), "{thread:?}");
        }
    }
}

/// The kernel's rule is about the thread that started a process, and forgets it when the process
/// changes its user.
#[test]
fn a_daemon_whose_parent_asked_for_it_ends_with_its_parent() {
    let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
    let start = || Daemon::start(binary, |_| String::new(), None).unwrap();
    let daemon = std::thread::spawn(start).join().unwrap();
    let is_over = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap();
        stat.contains(") Z ")
    };
    let since = Instant::now();
    while !is_over() {
        assert!(since.elapsed() < Duration::from_secs(60), "the daemon goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Threads with other filters than their kind has, and threads of no known kind. The main thread
/// has those of the process.
fn wrong_filters(threads: &[Status], process: u32) -> Vec<String> {
    let filters = |thread: &Status| thread["Seccomp_filters"].parse::<u32>().unwrap();
    let main = threads.iter().find(|thread| thread["Pid"] == process.to_string()).unwrap();
    let is_wrong = |thread: &&Status| {
        let own = filters_of(&thread["Name"]);
        thread["Seccomp"] != "2" || own.is_none_or(|own| filters(thread) != filters(main) + own)
    };
    let wrong = threads.iter().filter(is_wrong);
    wrong.map(|thread| format!("{} has {} filters", thread["Name"], filters(thread))).collect()
}
