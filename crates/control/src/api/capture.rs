//! A request for a capture.

use serde::{Deserialize, Serialize};

/// Frames to capture.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Names of ports.
    pub ports: Vec<String>,
    /// Most bytes of each frame; null: the whole frame.
    #[serde(default)]
    pub snaplen: Option<u32>,
    /// A program of the classic Berkeley Packet Filter, as `tcpdump -ddd` prints it: code, jt, jf
    /// and k of each instruction. Null: all frames.
    #[serde(default)]
    pub filter: Option<Vec<(u16, u8, u8, u32)>>,
}
