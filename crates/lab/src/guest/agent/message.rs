//! Lines of the command channel.

use super::Output;
use std::fmt::{self, Write as _};

/// A line from the guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AgentMessage<'a> {
    Hello(&'a str),
    Done {
        boot: &'a str,
        id: u64,
        output: Output,
    },
    /// Nothing more will come, for a carrier of the channel that has no guest at
    /// its end.
    Gone,
}

impl fmt::Display for AgentMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentMessage::Hello(_) => f.write_str("the guest is up"),
            AgentMessage::Done { id, output, .. } => {
                write!(f, "command {id}: exit code {}", output.code)
            }
            AgentMessage::Gone => f.write_str("the guest is gone"),
        }
    }
}

impl AgentMessage<'_> {
    pub(super) fn parse(line: &str) -> Option<AgentMessage<'_>> {
        let mut words = line.strip_suffix('\n')?.split(' ');
        match words.next()? {
            "hello" => Some(AgentMessage::Hello(words.next()?)),
            "gone" => Some(AgentMessage::Gone),
            "done" => {
                let (boot, id, code) =
                    (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                let text = unbase64(words.next()?)?;
                Some(AgentMessage::Done {
                    boot,
                    id,
                    output: Output { code, text: String::from_utf8_lossy(&text).into_owned() },
                })
            }
            _ => None,
        }
    }
}

/// A command for the guest's program, which reads it as `printf %b` does.
pub(super) fn escaped(command: &str) -> String {
    let mut text = String::with_capacity(command.len() * 2);
    for byte in command.bytes() {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "\\0{byte:03o}");
        }
    }
    text
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648, section 4. None when `text` is not whole.
pub(super) fn unbase64(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let digits = text.trim_end_matches('=');
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0u32;
        for digit in group {
            bits = bits << 6
                | u32::try_from(ALPHABET.iter().position(|known| known == digit)?).ok()?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}
