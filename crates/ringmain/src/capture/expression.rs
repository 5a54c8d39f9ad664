//! Expressions of pcap-filter(7), compiled by the host's tcpdump.
//!
//! The compiler is in libpcap. Linking libpcap would put it and its dependencies into the daemon,
//! which is the same program. So this command runs `tcpdump -ddd`, which prints the compiled
//! program and captures nothing. The daemon checks that program like any other.

use std::io::{self, ErrorKind, Write};
use std::process::{Command, Output, Stdio};

/// An empty file of libpcap's oldest format: link type Ethernet, frames of up to 262144 bytes.
/// Compiling for a file needs no rights and no interface.
const EMPTY_CAPTURE: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];

/// Why an expression was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum ExpressionError {
    /// There is no compiler.
    #[error("--filter needs tcpdump, which compiles the expression: install the package tcpdump")]
    NoCompiler,
    /// The program cannot be run.
    #[error("cannot run tcpdump, which compiles the expression of --filter: {0}")]
    System(#[from] io::Error),
    /// The compiler refuses the expression.
    #[error("--filter: {0}")]
    Refused(String),
}

/// Compiles an expression: code, jt, jf and k of each instruction.
pub fn compile(expression: &str) -> Result<Vec<(u16, u8, u8, u32)>, ExpressionError> {
    let Output { status, stdout, stderr } = run(expression)?;
    let program = if status.success() { parse(&String::from_utf8_lossy(&stdout)) } else { None };
    program.ok_or_else(|| ExpressionError::Refused(refusal(&String::from_utf8_lossy(&stderr))))
}

fn run(expression: &str) -> Result<Output, ExpressionError> {
    let mut command = Command::new("tcpdump");
    command.args(["-ddd", "-r", "-", "--", expression]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut compiler = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => ExpressionError::NoCompiler,
        _ => ExpressionError::System(error),
    })?;
    if let Some(mut input) = compiler.stdin.take() {
        // A compiler that does not read its input reports the reason on standard error.
        let _ = input.write_all(&EMPTY_CAPTURE);
    }
    Ok(compiler.wait_with_output()?)
}

/// Reads what `tcpdump -ddd` prints: the number of instructions, then each on a line.
fn parse(text: &str) -> Option<Vec<(u16, u8, u8, u32)>> {
    let mut lines = text.lines();
    let count: usize = lines.next()?.trim().parse().ok()?;
    let program: Vec<_> = lines.map(instruction).collect::<Option<_>>()?;
    (program.len() == count).then_some(program)
}

fn instruction(line: &str) -> Option<(u16, u8, u8, u32)> {
    let mut words = line.split_whitespace();
    let instruction = (
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
    );
    words.next().is_none().then_some(instruction)
}

/// The compiler's error message, without the line about the file that it reads.
fn refusal(stderr: &str) -> String {
    let complaint = stderr.lines().find_map(|line| line.strip_prefix("tcpdump: "));
    complaint.unwrap_or("tcpdump printed no program").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_as_tcpdump_prints_them() {
        let text = "4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n";
        let program = [(40, 0, 0, 12), (21, 0, 1, 2054), (6, 0, 0, 262_144), (6, 0, 0, 0)];
        assert_eq!(parse(text).unwrap(), program);
        for wrong in ["", "1\n", "1\n6 0 0\n", "1\n6 0 0 0 0\n", "1\n6 0 0 -1\n", "x\n6 0 0 0\n"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_complaint_is_told_without_the_rest() {
        let stderr = "reading from file -, link-type EN10MB (Ethernet), snapshot length 262144\n\
                      tcpdump: can't parse filter expression: syntax error\n";
        assert_eq!(refusal(stderr), "can't parse filter expression: syntax error");
        assert_eq!(refusal(""), "tcpdump printed no program");
    }
}
