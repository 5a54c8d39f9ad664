//! The configuration file of a daemon, which is read at the start and at each reload.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigErrors, Host, Others};

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is not text.
    #[error("{}:{line}: not UTF-8; save the file as UTF-8 text", .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The line with the first wrong byte.
        line: usize,
    },
}

/// A configuration file, and the command line's options beside it.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The path as it was given, for messages.
    path: PathBuf,
    /// The path that is read, which is independent of the working directory.
    absolute: PathBuf,
    /// The control socket of the command line, which overrides that of the file.
    control: Option<PathBuf>,
    host: Host,
}

impl ConfigFile {
    /// The file at `path`, which is checked against `host` each time. Nothing is read yet.
    pub fn new(path: &Path, control: Option<PathBuf>, host: Host) -> ConfigFile {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        ConfigFile { path: path.to_owned(), absolute, control, host }
    }

    /// The name of the file in messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Reads the text.
    ///
    /// # Errors
    /// When the file cannot be read, or is not UTF-8.
    pub fn read(&self) -> Result<String, FileError> {
        let path = || self.path.clone();
        let bytes = fs::read(&self.absolute)
            .map_err(|error| FileError::Unreadable { path: path(), error })?;
        String::from_utf8(bytes).map_err(|error| {
            let text = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + text.iter().filter(|byte| **byte == b'\n').count();
            FileError::NotText { path: path(), line }
        })
    }

    /// Checks a text of the file, and reads the files of its address groups. Its ports and disks
    /// must not conflict with `others`, which are not in it.
    ///
    /// # Errors
    /// All problems of the text and the files.
    pub fn parse(&self, text: &str, others: &Others<'_>) -> Result<Config, ConfigErrors> {
        let mut config = Config::parse_beside(&self.name(), text, &self.host, others)?;
        if let Some(socket) = &self.control {
            config.socket.clone_from(socket);
        }
        let folder = self.absolute.parent().unwrap_or(Path::new("/"));
        config.security.read_members(folder)?;
        Ok(config)
    }
}
