//! Programs that are not ours.

use std::process::Command;

/// The first line of what a program says of its version, when it is started with `arg`.
pub fn version(program: &str, arg: &str) -> Option<String> {
    let output = Command::new(program).arg(arg).output().ok()?;
    // iperf says it on standard error, as some versions do.
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
}
