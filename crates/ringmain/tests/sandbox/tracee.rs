//! A thread of another process that makes system calls for a test (ptrace).
//!
//! The thread is stopped, makes each call in place of its own work, with the rights and filters
//! that it has, and goes on as if nothing had happened. A call that its filter forbids raises
//! SIGSYS, which is not delivered: the thread survives, and makes the next call.

use nix::libc::{c_long, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The filter of the thread forbids it.
    Forbidden,
    /// It failed with this error.
    Failed(i32),
    /// It succeeded, with this result.
    Done(i64),
}

/// The bytes of the instruction `syscall`.
const SYSCALL: i64 = 0x050f;
/// How far below its stack pointer a thread's stack is unused: beyond the red zone.
const BELOW: u64 = 1024;
/// Errors of calls that a stop interrupted, and that the kernel would make again: ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
const AGAIN: [i64; 4] = [-512, -513, -514, -516];

/// A thread that is stopped.
pub struct Tracee {
    thread: Pid,
    process: u32,
    /// Its registers before the first call.
    registers: user_regs_struct,
}

impl Tracee {
    /// Stops a thread. `None`: it has ended.
    pub fn stop(process: u32, thread: i32) -> Option<Tracee> {
        let thread = Pid::from_raw(thread);
        ptrace::seize(thread, Options::PTRACE_O_TRACESYSGOOD).ok()?;
        ptrace::interrupt(thread).ok()?;
        waitpid(thread, Some(WaitPidFlag::__WALL)).ok()?;
        let registers = ptrace::getregs(thread).ok()?;
        Some(Tracee { thread, process, registers })
    }

    /// Where the instruction of the call is in which the thread was stopped, if it was in one.
    pub fn instruction(&self) -> Option<u64> {
        let before = self.registers.rip - 2;
        let code = ptrace::read(self.thread, before as ptrace::AddressType).ok()?;
        (code & 0xffff == SYSCALL).then_some(before)
    }

    /// The address of a copy of this text, which ends with a zero byte, in the thread's memory.
    pub fn put(&self, text: &str) -> u64 {
        assert!(text.len() < BELOW as usize / 2);
        let start = (self.registers.rsp - BELOW) & !7;
        let bytes = [text.as_bytes(), &[0; 8]].concat();
        for (at, word) in (start..).step_by(8).zip(bytes.chunks_exact(8)) {
            let word = c_long::from_ne_bytes(word.try_into().unwrap());
            ptrace::write(self.thread, at as ptrace::AddressType, word).unwrap();
        }
        start
    }

    /// Makes a call, by the instruction at this place.
    pub fn call(&self, instruction: u64, number: c_long, arguments: [u64; 4]) -> Outcome {
        let [rdi, rsi, rdx, r10] = arguments;
        let registers = user_regs_struct {
            rip: instruction,
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8: 0,
            r9: 0,
            ..self.registers
        };
        ptrace::setregs(self.thread, registers).unwrap();
        self.until_call();
        self.until_call();
        if self.is_pending(Signal::SIGSYS) {
            ptrace::syscall(self.thread, None).unwrap();
            let stop = waitpid(self.thread, Some(WaitPidFlag::__WALL)).unwrap();
            assert_eq!(stop, WaitStatus::Stopped(self.thread, Signal::SIGSYS));
            return Outcome::Forbidden;
        }
        match ptrace::getregs(self.thread).unwrap().rax as i64 {
            error @ -4095..=-1 => Outcome::Failed(-error as i32),
            result => Outcome::Done(result),
        }
    }

    /// Lets it run until it enters or leaves a call. Signals that come meanwhile are lost: nobody
    /// but a watchdog sends any, and sends them again.
    fn until_call(&self) {
        loop {
            ptrace::syscall(self.thread, None).unwrap();
            match waitpid(self.thread, Some(WaitPidFlag::__WALL)).unwrap() {
                WaitStatus::PtraceSyscall(_) => return,
                WaitStatus::Stopped(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_pending(&self, signal: Signal) -> bool {
        let path = format!("/proc/{}/task/{}/status", self.process, self.thread);
        let status = std::fs::read_to_string(path).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:\t")).unwrap();
        u64::from_str_radix(pending, 16).unwrap() & 1 << (signal as i32 - 1) != 0
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let mut registers = self.registers;
        if registers.orig_rax as i64 != -1 && AGAIN.contains(&(registers.rax as i64)) {
            registers.rax = registers.orig_rax;
            registers.rip -= 2;
        }
        registers.orig_rax = u64::MAX;
        // A process that has ended needs neither.
        let _ = ptrace::setregs(self.thread, registers);
        let _ = ptrace::detach(self.thread, None);
    }
}
