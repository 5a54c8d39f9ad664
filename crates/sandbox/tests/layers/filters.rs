//! The filters of system calls, by kind of thread.

use super::*;

#[test]
fn no_thread_may_take_over_the_host() {
    let executable = format!(":0:4096:{}", libc::PROT_READ | libc::PROT_EXEC);
    let calls = [
        (libc::SYS_execve, ""),
        (libc::SYS_execveat, ""),
        // A process, and not a thread.
        (libc::SYS_clone, ":0"),
        (libc::SYS_ptrace, ""),
        (libc::SYS_process_vm_readv, ""),
        (libc::SYS_process_vm_writev, ""),
        (libc::SYS_kill, ":1"),
        (libc::SYS_tgkill, ":1:1"),
        (libc::SYS_setuid, ""),
        (libc::SYS_setresuid, ""),
        (libc::SYS_capset, ""),
        (libc::SYS_unshare, ""),
        (libc::SYS_setns, ""),
        (libc::SYS_mount, ""),
        (libc::SYS_pivot_root, ""),
        (libc::SYS_chroot, ""),
        (libc::SYS_bpf, ""),
        (libc::SYS_init_module, ""),
        (libc::SYS_open_by_handle_at, ""),
        (libc::SYS_io_uring_setup, ""),
        (libc::SYS_userfaultfd, ""),
        (libc::SYS_keyctl, ""),
        // Internet, and packets: no configuration of these tests needs them.
        (libc::SYS_socket, ":2:1"),
        (libc::SYS_socket, ":17:3"),
        (libc::SYS_mmap, &executable),
        (libc::SYS_mprotect, &executable),
    ];
    for kind in KINDS {
        calls.iter().for_each(|(number, arguments)| is_killed(kind, *number, arguments));
    }
}

#[test]
fn names_of_users_are_those_that_were_known_before() {
    fails("no-new-privileges", "names", "done [true, false, true] [true, false, true]");
}

#[test]
fn workers_and_helpers_may_not_create_files_or_start_threads() {
    let thread = format!(":{}", libc::CLONE_THREAD);
    let calls = [
        (libc::SYS_openat2, ""),
        (libc::SYS_socket, ":1:1"),
        (libc::SYS_connect, ""),
        (libc::SYS_accept4, ""),
        (libc::SYS_recvmsg, ""),
        (libc::SYS_unlinkat, ""),
        (libc::SYS_memfd_create, ""),
        (libc::SYS_fcntl, ""),
        (libc::SYS_clone, &thread),
        (libc::SYS_prctl, ":15"),
        (libc::SYS_seccomp, ""),
        (libc::SYS_rt_sigaction, ":31"),
        (libc::SYS_prlimit64, ""),
    ];
    for kind in ["worker", "helper"] {
        calls.iter().for_each(|(number, arguments)| is_killed(kind, *number, arguments));
    }
    is_killed("helper", libc::SYS_ioctl, "");
    is_killed("helper", libc::SYS_epoll_ctl, "");
}

#[test]
fn those_that_serve_peers_may_not_make_files_or_sockets_that_listen() {
    let created = format!(":-1:0:{}", libc::O_CREAT | libc::O_WRONLY);
    let calls = [
        (libc::SYS_openat, &created[..]),
        (libc::SYS_mkdirat, ":-1"),
        (libc::SYS_fchmod, ":-1"),
        (libc::SYS_fchown, ":-1"),
        (libc::SYS_bind, ":-1"),
        (libc::SYS_listen, ":-1"),
        (libc::SYS_prlimit64, ""),
        (libc::SYS_openat2, ""),
    ];
    for kind in ["task", "front-end", "acceptor"] {
        calls.iter().for_each(|(number, arguments)| is_killed(kind, *number, arguments));
    }
    let thread = format!(":{}", libc::CLONE_THREAD);
    for kind in ["task", "front-end"] {
        is_killed(kind, libc::SYS_clone, &thread);
        is_killed(kind, libc::SYS_seccomp, "");
        is_killed(kind, libc::SYS_setpriority, "");
    }
    for call in [libc::SYS_unlinkat, libc::SYS_memfd_create, libc::SYS_connect] {
        is_killed("task", call, "");
    }
    is_killed("task", libc::SYS_ioctl, "");
    is_killed("task", libc::SYS_socket, ":1:1");
}

/// Rings are made by control threads, before workers start. A worker may enable its ring, and limit
/// the kernel's threads for it.
#[test]
fn workers_of_disks_may_use_io_uring_and_not_change_it() {
    let layers = format!("{FILTERS},{DISKS}");
    let calls = [
        (libc::SYS_io_uring_setup, ""),
        // Buffers, files, and restrictions.
        (libc::SYS_io_uring_register, ":-1:0"),
        (libc::SYS_io_uring_register, ":-1:2"),
        (libc::SYS_io_uring_register, ":-1:11"),
        (libc::SYS_execve, ""),
        (libc::SYS_openat2, ""),
        (libc::SYS_socket, ":1:1"),
        (libc::SYS_ftruncate, ":-1:0"),
    ];
    for (number, arguments) in calls {
        is_killed_with(&layers, "worker", number, arguments);
    }
    for number in [libc::SYS_io_uring_enter, libc::SYS_fallocate, libc::SYS_fdatasync] {
        is_killed_with(&layers, "helper", number, ":-1");
    }
    let bad = errno(rustix::io::Errno::BADF);
    let folder = folder();
    for call in [
        format!("call={}:-1", libc::SYS_io_uring_enter),
        // A descriptor of -1 has a meaning of its own.
        format!("call={}:1000000:12", libc::SYS_io_uring_register),
        format!("call={}:-1", libc::SYS_fdatasync),
    ] {
        let Some(output) = run(&layers, "worker", &call, folder.path()) else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&bad), "{call}: {text}");
    }
}

#[test]
fn what_threads_need_is_allowed() {
    // Descriptor -1 is bad, and these calls say so.
    let bad = errno(rustix::io::Errno::BADF);
    let seccomp = FILTERS;
    fails(seccomp, &format!("call={}:-1", libc::SYS_read), &bad);
    fails(seccomp, &format!("call={}:-1", libc::SYS_write), &bad);
    fails(seccomp, &format!("call={}", libc::SYS_gettid), "done ");
    let folder = folder();
    let unlock = format!("{}:-1:{}", libc::SYS_fcntl, libc::F_OFD_SETLK);
    for (kind, call) in [
        ("worker", format!("{}:-1", libc::SYS_ioctl)),
        ("control", format!("{}:-1", libc::SYS_fstat)),
        // The thread with the last reference to a disk's image unlocks it.
        ("worker", unlock.clone()),
        ("task", unlock),
    ] {
        let action = format!("call={call}");
        let Some(output) = run(seccomp, kind, &action, folder.path()) else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&bad), "{kind}: {text}");
    }
}
