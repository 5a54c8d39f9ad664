//! The guest's end of the command channel: runs the shell commands that come on standard input, and
//! answers on standard output. `agent.sh` starts this program in a guest.
//!
//! From the host, one line each: `BOOT run ID COMMAND`, `BOOT stop ID`.
//! To the host, one line each: `hello BOOT`, `done BOOT ID CODE OUTPUT`.
//!
//! BOOT names the boot of the guest: a line that was sent before a reset is not taken for one that
//! was sent after it. In a COMMAND, every byte that is no ASCII letter or digit is `\0` and three
//! octal digits, as `printf %b` reads them. The OUTPUT, standard error included, is in Base64. A
//! CODE of 128 + n says that signal n ended the command.
//!
//! Copies of processes and starts of programs are slow on an emulated processor, most of all on
//! Xen. So this is a program and no script, and a command costs one `posix_spawn`, which copies no
//! page tables. The program is linked statically: guests of every C library run it.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of output that are kept: the last ones.
const KEPT: u64 = 1_000_000;
/// Time between attempts to read from a channel whose other end nobody has open.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between looks at processes that have been killed.
const LOOK: Duration = Duration::from_millis(10);
/// The exit code of a command that could not be started.
const NOT_STARTED: i32 = 127;
/// Bytes of stack of a thread that waits for a command.
const STACK: usize = 128 * 1024;

/// The commands that run.
struct Agent {
    boot: String,
    jobs: Mutex<HashMap<u64, Job>>,
}

/// A command that runs.
struct Job {
    /// The process group of the command: the number of its shell.
    group: u32,
    /// The shell that ends the group, once the host has asked for that.
    ending: Option<Child>,
}

fn main() -> ExitCode {
    match serve(std::env::args().nth(1).as_deref() == Some("hello")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the channel. Says hello first if the guest has just booted.
fn serve(has_booted: bool) -> io::Result<()> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    if has_booted {
        say(&format!("\nhello {boot}\n"))?;
    }
    let agent = Arc::new(Agent { boot, jobs: Mutex::default() });
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            std::thread::sleep(PAUSE);
        }
        // A line that a reset has cut off has no end.
        if let Some(line) = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok())
        {
            agent.hear(line);
        }
    }
}

impl Agent {
    /// Carries out a line from the host. A line of another boot is of no concern.
    fn hear(self: &Arc<Self>, line: &str) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match *words {
            [boot, "run", id, command] if boot == self.boot => {
                if let (Ok(id), Some(command)) = (id.parse(), unescaped(command)) {
                    self.run(id, &command);
                }
            }
            [boot, "stop", id] if boot == self.boot => {
                if let Ok(id) = id.parse() {
                    self.stop(id);
                }
            }
            _ => {}
        }
    }

    fn run(self: &Arc<Self>, id: u64, command: &str) {
        let agent = Arc::clone(self);
        let started = start(id, command).and_then(|(child, output)| {
            self.jobs().insert(id, Job { group: child.id(), ending: None });
            std::thread::Builder::new()
                .stack_size(STACK)
                .spawn(move || agent.finish(id, child, &output))
        });
        if let Err(error) = started {
            self.answer(id, NOT_STARTED, format!("cannot run a command: {error}\n").as_bytes());
        }
    }

    /// Kills a command and all that it has started. A command that has ended is left alone.
    fn stop(&self, id: u64) {
        if let Some(Job { group, ending: ending @ None }) = self.jobs().get_mut(&id) {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("kill -9 -{group}")]).stdin(Stdio::null());
            // The host waits for the command's end, and says so if there is none.
            *ending = shell.spawn().ok();
        }
    }

    /// Waits for a command's end and answers.
    fn finish(&self, id: u64, mut child: Child, output: &File) {
        let code = child.wait().ok().and_then(|status| {
            status.code().or_else(|| status.signal().map(|signal| 128 + signal))
        });
        let job = self.jobs().remove(&id);
        // Whoever stopped a command may count on all of its processes being gone: one of them may
        // have listened on a port.
        if let Some(Job { group, ending: Some(mut ending) }) = job {
            let _ = ending.wait();
            while has_processes(group) {
                std::thread::sleep(LOOK);
            }
        }
        self.answer(id, code.unwrap_or(NOT_STARTED), &tail(output).unwrap_or_default());
    }

    fn answer(&self, id: u64, code: i32, output: &[u8]) {
        // Nothing can be done about a channel that is gone.
        let _ = say(&format!("done {} {id} {code} {}\n", self.boot, base64(output)));
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a shell command in a process group of its own, and gives the file of its output.
///
/// The output goes to a file and not to a pipe: processes that the command leaves behind may keep
/// their output open.
fn start(id: u64, command: &str) -> io::Result<(Child, File)> {
    let path = format!("/tmp/output.{}.{id}", std::process::id());
    let output = File::options().read(true).append(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let child = Command::new("sh")
        .args(["-c", command])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()?;
    Ok((child, output))
}

/// Whether any process of a group is left, those aside that are dead and wait for their parent.
fn has_processes(group: u32) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.map(|process| std::fs::read_to_string(process.path().join("stat")));
    stats.flatten().any(|stat| {
        // proc(5): NUMBER (NAME) STATE PARENT GROUP ..., where the name may contain anything.
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields).unwrap_or_default();
        let mut fields = fields.split(' ');
        let state = fields.next();
        fields.nth(1).and_then(|word| word.parse().ok()) == Some(group)
            && !matches!(state, Some("Z" | "X"))
    })
}

/// The end of a file.
fn tail(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut bytes = vec![0; usize::try_from(length.min(KEPT)).unwrap_or_default()];
    file.read_exact_at(&mut bytes, length.saturating_sub(KEPT))?;
    Ok(bytes)
}

/// Writes lines to the host, undivided by those of other threads.
fn say(lines: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(lines.as_bytes())?;
    output.flush()
}

/// A command as it was before it was escaped. `None` when it was not escaped for this program.
pub(crate) fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'\\', [b'0', digits @ ..]) => {
                let (digits, after) = digits.split_at_checked(3)?;
                (u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?, after)
            }
            (b'\\', _) => return None,
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// RFC 4648, section 4.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, place| {
            bits << 8 | usize::from(group.get(place).copied().unwrap_or_default())
        });
        for place in 0..4 {
            let digit = ALPHABET[bits >> (18 - 6 * place) & 63];
            text.push(if place > group.len() { '=' } else { char::from(digit) });
        }
    }
    text
}
