//! Filters for system calls, by kind of thread.
//!
//! The filter of the whole process is installed by its first thread, and inherited by all others.
//! Kinds of threads that need less add a filter of their own. A thread can add filters and never
//! remove one: what an inner filter forbids stays forbidden.
//!
//! Calls that a thread makes for each burst are allowed with any arguments: the kernel caches that
//! decision, and does not run the filters for such calls.

mod calls;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::layer::LayerState;
use crate::violation;

/// A kind of thread that needs less than the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Serves rings.
    Worker,
    /// Waits, counts, and signals threads and descriptors that already exist.
    Helper,
    /// Does a task within the process, or answers a client, with descriptors that are already open.
    Task,
    /// Serves the front-end of a port or disk.
    FrontEnd,
    /// Accepts clients or guests, and starts threads for them, which inherit its filter.
    Acceptor,
}

/// Permissions of control threads beyond those that every configuration needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extras {
    /// Configure network interfaces.
    pub interfaces: bool,
    /// Load programs into network cards' drivers, and open AF_XDP sockets.
    pub device_queues: bool,
    /// Serve disks. Workers may use io_uring then.
    pub disks: bool,
    /// Open UDP sockets to other hosts. Workers may send and receive many datagrams at once then.
    pub overlays: bool,
    /// Read and write the kernel's tables for a control plane.
    pub routing: bool,
}

/// The filters of kinds of threads, once the process is filtered.
static FILTERS: OnceLock<RoleFilters> = OnceLock::new();

struct RoleFilters {
    worker: BpfProgram,
    helper: BpfProgram,
    task: BpfProgram,
    front_end: BpfProgram,
    acceptor: BpfProgram,
}

/// Restricts the calling thread to the calls that its kind needs. Does nothing if the process is
/// not filtered.
pub fn enter_thread(role: Role) {
    let Some(filters) = FILTERS.get() else { return };
    let filter = match role {
        Role::Worker => &filters.worker,
        Role::Helper => &filters.helper,
        Role::Task => &filters.task,
        Role::FrontEnd => &filters.front_end,
        Role::Acceptor => &filters.acceptor,
    };
    if let Err(error) = apply_filter(filter) {
        // The kernel has accepted a filter before. A thread must not run with more rights than it
        // should.
        eprintln!("ringmain: cannot filter the system calls of a thread: {error}");
        std::process::abort();
    }
}

/// Filters the system calls of this thread and of all that it will start.
pub(crate) fn enter(extras: Extras) -> LayerState {
    let installed = install(extras);
    LayerState::of(installed.map(|()| "a call that is not allowed ends the process".to_owned()))
}

fn install(extras: Extras) -> Result<(), Box<dyn std::error::Error>> {
    let control = compile(calls::control(extras)?)?;
    let roles = RoleFilters {
        worker: compile(calls::worker(extras)?)?,
        helper: compile(calls::helper()?)?,
        task: compile(calls::task()?)?,
        front_end: compile(calls::front_end(extras)?)?,
        acceptor: compile(calls::acceptor()?)?,
    };
    let fallback = without_clone3()?;
    violation::report_before_the_end()?;
    // The filter that makes calls fail with an error comes first: the other filter may forbid
    // installing it.
    apply_filter(&fallback)?;
    apply_filter(&control)?;
    let _ = FILTERS.set(roles);
    Ok(())
}

/// System calls that are allowed, by number: always, or where one of the rules holds.
type Calls = BTreeMap<i64, Vec<SeccompRule>>;

fn compile(calls: Calls) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(calls, SeccompAction::Trap, SeccompAction::Allow, arch)?.try_into()
}

/// Makes the C library start threads by `clone`, whose flags a filter can see.
fn without_clone3() -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let calls = Calls::from([(libc::SYS_clone3, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(calls, SeccompAction::Allow, refuse, arch)?.try_into()
}

type Rule = Result<SeccompRule, seccompiler::BackendError>;

/// Holds where the lower half of an argument is this value.
fn equals(argument: u8, value: u64) -> Rule {
    condition(argument, SeccompCmpOp::Eq, value)
}

/// Holds where these bits of the lower half of an argument have this value.
fn masked(argument: u8, mask: u64, value: u64) -> Rule {
    condition(argument, SeccompCmpOp::MaskedEq(mask), value)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Rule {
    let length = SeccompCmpArgLen::Dword;
    SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])
}
