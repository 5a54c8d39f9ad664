//! The report of a forbidden system call: one line that names the call and the thread, after which
//! SIGSYS ends the process.

use std::io;

use libc::{c_int, c_void, siginfo_t};

/// Longest line in bytes.
const LONGEST: usize = 160;

/// Where the kernel puts the number of the call, in a `siginfo_t` of SIGSYS: behind signal, error
/// and code, which are padded to the size of a pointer, and behind the address of the call.
#[repr(C)]
struct SigsysInfo {
    signal: [c_int; 3],
    address: *const c_void,
    call: c_int,
    architecture: u32,
}

/// Installs the handler.
pub fn report_before_the_end() -> io::Result<()> {
    // SAFETY: sigaction is plain data for which all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = report;
    action.sa_sigaction = handler as usize;
    // SA_NODEFER is not set: another SIGSYS within the handler ends the process at once.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and calls only what may be
    // called within a handler.
    match unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn report(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a siginfo_t, which is larger than this and as strictly aligned. If
    // another process has sent the SIGSYS, the bytes mean something else, and are only printed.
    let call = unsafe { (*info.cast::<SigsysInfo>()).call };
    let mut name = [0u8; 16];
    // SAFETY: the call writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let mut line = Line { bytes: [0; LONGEST], used: 0 };
    line.push(b"ringmain: sandbox: thread \"");
    line.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
    line.push(b"\" made system call ");
    line.push_number(call.unsigned_abs());
    line.push(b", which is forbidden to it; the process ends\n");
    let mut stderr = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // SAFETY: `stderr` is one descriptor. A full pipe must not keep the process alive.
    if unsafe { libc::poll(&mut stderr, 1, 0) } > 0 {
        // SAFETY: `used` bytes of the line are initialized. A line that cannot be written is lost.
        let _ = unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.used) };
    }
    // SAFETY: no such call exists, and no filter allows it. SIGSYS is blocked within its handler,
    // so the kernel ends the process by that signal, whatever handler is installed.
    unsafe { libc::syscall(c_int::MAX.into()) };
    // SAFETY: ends the process, where the signal was sent and no filter is installed.
    unsafe { libc::_exit(128 + libc::SIGSYS) };
}

/// A line that is put together without allocating.
struct Line {
    bytes: [u8; LONGEST],
    used: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.used) {
                *place = *byte;
                self.used += 1;
            }
        }
    }

    fn push_number(&mut self, number: u32) {
        let mut digits = [0u8; 10];
        let (mut rest, mut first) = (number, digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_their_longest() {
        let mut line = Line { bytes: [0; LONGEST], used: 0 };
        line.push(b"call ");
        line.push_number(0);
        line.push(b" ");
        line.push_number(u32::MAX);
        assert_eq!(&line.bytes[..line.used], b"call 0 4294967295");
        line.push(&[b'x'; 2 * LONGEST]);
        assert_eq!(line.used, LONGEST);
    }
}
