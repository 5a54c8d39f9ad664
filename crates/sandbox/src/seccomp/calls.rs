//! The system calls that each kind of thread may make.
//!
//! No thread may execute a program, start a process, trace, mount, change users, load modules, or
//! map memory that can be executed.

use libc::{PROT_EXEC, c_long};

use super::{Calls, Extras, Rule, equals, masked};

type Result<T> = std::result::Result<T, seccompiler::BackendError>;

/// Calls of workers for bursts, and for waiting.
const SERVE: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_ioctl,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_timerfd_settime,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_getrusage,
    libc::SYS_fstat,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
];

/// Further calls of workers of a daemon with disks, and of the threads that carry out requests
/// where there is no io_uring.
const STORE: &[c_long] = &[libc::SYS_io_uring_enter, libc::SYS_fallocate, libc::SYS_fdatasync];

/// Further calls of workers of a daemon with tunnels to other hosts. The sockets are made
/// elsewhere.
const TUNNEL: &[c_long] = &[libc::SYS_sendmmsg, libc::SYS_recvmmsg];

/// Operations of `io_uring_register`.
const ENABLE_RINGS: u64 = 12;
const IOWQ_MAX_WORKERS: u64 = 19;

/// The same under names that only older architectures have.
#[cfg(target_arch = "x86_64")]
const SERVE_LEGACY: &[c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const SERVE_LEGACY: &[c_long] = &[];

/// Calls of every thread for its memory, for signals, and at its end.
const LIVE: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_set_robust_list,
];

/// Calls of control threads for files, descriptors and sockets.
const FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fadvise64,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_memfd_create,
    // To watch whether a front-end keeps a file of its memory.
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_pselect6,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
];

#[cfg(target_arch = "x86_64")]
const FILES_LEGACY: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_access,
    libc::SYS_unlink,
    libc::SYS_mkdir,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_select,
    libc::SYS_accept,
];
#[cfg(not(target_arch = "x86_64"))]
const FILES_LEGACY: &[c_long] = &[];

/// Calls of control threads for threads, and to ask about the process.
const PROCESS: &[c_long] = &[
    // Fails with an error, so that the C library calls `clone`.
    libc::SYS_clone3,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_getcpu,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_setpriority,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getppid,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_getrlimit,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_times,
    libc::SYS_gettimeofday,
    libc::SYS_clock_getres,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_umask,
    // Further filters.
    libc::SYS_prctl,
    libc::SYS_seccomp,
];

/// Calls of control threads that are not needed to serve front-ends or to accept clients. Threads
/// without them create no file and no listening socket, and change the owner of no file.
const ADMINISTER: &[c_long] = &[
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_umask,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_socketpair,
    libc::SYS_pipe2,
    libc::SYS_dup3,
    libc::SYS_prlimit64,
];

#[cfg(target_arch = "x86_64")]
const ADMINISTER_LEGACY: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_mkdir,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_pipe,
    libc::SYS_dup2,
];
#[cfg(not(target_arch = "x86_64"))]
const ADMINISTER_LEGACY: &[c_long] = &[];

/// Calls to start threads, to place them, and to filter their calls.
const START: &[c_long] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_seccomp,
    libc::SYS_sched_setaffinity,
    libc::SYS_setpriority,
];

/// Calls of tasks: for open connections, for events, and to ask about the process.
const ASK: &[c_long] = &[
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_fcntl,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_lseek,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getpeername,
    libc::SYS_membarrier,
    libc::SYS_getcpu,
    libc::SYS_sched_getaffinity,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// The calls that all threads without a filter of their own may make.
pub fn control(extras: Extras) -> Result<Calls> {
    let mut calls = worker(extras)?;
    for list in [FILES, FILES_LEGACY, PROCESS] {
        allow(&mut calls, list);
    }
    let thread = libc::CLONE_THREAD as u64;
    calls.insert(libc::SYS_clone, vec![masked(0, thread, thread)?]);
    let mut families = vec![libc::AF_UNIX];
    if extras.interfaces || extras.device_queues || extras.overlays {
        families.push(libc::AF_INET);
    }
    if extras.overlays {
        families.push(libc::AF_INET6);
    }
    if extras.routing {
        families.push(libc::AF_NETLINK);
    }
    if extras.device_queues {
        families.push(libc::AF_XDP);
        allow(&mut calls, &[libc::SYS_bpf]);
    }
    if extras.disks {
        allow(&mut calls, &[libc::SYS_io_uring_setup, libc::SYS_io_uring_register]);
    }
    let family = |family: libc::c_int| equals(0, family as u64);
    calls.insert(libc::SYS_socket, families.into_iter().map(family).collect::<Result<_>>()?);
    Ok(calls)
}

/// The calls that workers may make.
pub fn worker(extras: Extras) -> Result<Calls> {
    let mut calls = Calls::new();
    for list in [SERVE, SERVE_LEGACY, LIVE] {
        allow(&mut calls, list);
    }
    restrict(&mut calls)?;
    if extras.overlays {
        allow(&mut calls, TUNNEL);
    }
    if extras.disks {
        allow(&mut calls, STORE);
        // Another thread creates the ring. A worker takes it over, and limits the kernel's threads
        // for it.
        let register = |operation: u64| equals(1, operation);
        let rules = vec![register(ENABLE_RINGS)?, register(IOWQ_MAX_WORKERS)?];
        calls.insert(libc::SYS_io_uring_register, rules);
    }
    Ok(calls)
}

/// The calls that tasks may make.
pub fn task() -> Result<Calls> {
    let mut calls = worker(Extras::default())?;
    allow(&mut calls, ASK);
    // Sockets are made not to block.
    calls.insert(libc::SYS_ioctl, vec![equals(1, libc::FIONBIO)?]);
    Ok(calls)
}

/// The calls that threads which serve front-ends may make.
pub fn front_end(extras: Extras) -> Result<Calls> {
    let mut calls = serving()?;
    calls.retain(|call, _| !START.contains(call));
    if extras.disks {
        allow(&mut calls, &[libc::SYS_fdatasync]);
    }
    Ok(calls)
}

/// The calls that threads which accept clients or guests may make. Threads that they start inherit
/// their filter, and add another one.
pub fn acceptor() -> Result<Calls> {
    let mut calls = serving()?;
    allow(&mut calls, &[libc::SYS_prctl, libc::SYS_socketpair]);
    Ok(calls)
}

/// The calls of control threads, without calls that administer files and sockets.
fn serving() -> Result<Calls> {
    let mut calls = control(Extras::default())?;
    calls.retain(|call, _| !ADMINISTER.contains(call) && !ADMINISTER_LEGACY.contains(call));
    // Only files that already exist can be opened.
    let existing = masked(2, libc::O_CREAT as u64, 0)?;
    calls.insert(libc::SYS_openat, vec![existing]);
    // The same as for workers.
    restrict_prctl(&mut calls)?;
    Ok(calls)
}

/// The calls that helpers may make.
pub fn helper() -> Result<Calls> {
    let serve = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_futex,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_ppoll,
        libc::SYS_sched_yield,
        libc::SYS_restart_syscall,
    ];
    let mut calls = Calls::new();
    for list in [&serve, SERVE_LEGACY, LIVE] {
        allow(&mut calls, list);
    }
    // Signals that end the daemon may be taken by any thread, which passes them on.
    allow(&mut calls, &[libc::SYS_sendto]);
    restrict(&mut calls)?;
    Ok(calls)
}

fn allow(calls: &mut Calls, list: &[c_long]) {
    calls.extend(list.iter().map(|call| (*call, Vec::new())));
}

/// Adds calls whose arguments matter.
fn restrict(calls: &mut Calls) -> Result<()> {
    let not_executable: fn() -> Rule = || masked(2, PROT_EXEC as u64, 0);
    calls.insert(libc::SYS_mmap, vec![not_executable()?]);
    calls.insert(libc::SYS_mprotect, vec![not_executable()?]);
    // Only threads of this process can be signalled. A worker that panics signals itself.
    let own = rustix::process::getpid().as_raw_nonzero().get();
    calls.insert(libc::SYS_tgkill, vec![equals(0, own as u64)?]);
    restrict_prctl(calls)?;
    // The standard library checks a descriptor before closing it, in builds with such checks.
    let check = equals(1, libc::F_GETFD as u64)?;
    // The thread with the last reference to a disk's image unlocks it.
    let unlock = equals(1, libc::F_OFD_SETLK as u64)?;
    calls.insert(libc::SYS_fcntl, vec![check, unlock]);
    // The C library reads the kernel's overcommit setting once, on the thread that first returns
    // memory of a heap. Landlock and the root decide which files can be opened.
    let read_only = masked(2, libc::O_ACCMODE as u64, libc::O_RDONLY as u64)?;
    calls.insert(libc::SYS_openat, vec![read_only]);
    // A fault outside all guarded memory restores the handler that was installed before.
    let fault = equals(0, libc::SIGBUS as u64)?;
    calls.insert(libc::SYS_rt_sigaction, vec![fault]);
    Ok(())
}

/// The name for a report, and names of memory, which the C library gives.
fn restrict_prctl(calls: &mut Calls) -> Result<()> {
    let name = equals(0, libc::PR_GET_NAME as u64)?;
    let memory = equals(0, libc::PR_SET_VMA as u64)?;
    calls.insert(libc::SYS_prctl, vec![name, memory]);
    Ok(())
}
