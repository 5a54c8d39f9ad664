//! The socket of a guest that the generator simulates.

use std::path::PathBuf;
use std::str::FromStr;

/// One guest's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Path of the socket.
    pub path: PathBuf,
    /// Whether it is listened on; `None`: as the other options say.
    pub listen: Option<bool>,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (listen, path) = match text.split_once(':') {
            Some(("server", path)) => (Some(true), path),
            Some(("client", path)) => (Some(false), path),
            _ => (None, text),
        };
        match path {
            "" => Err("a socket needs a path".into()),
            path => Ok(Self { path: path.into(), listen }),
        }
    }
}
