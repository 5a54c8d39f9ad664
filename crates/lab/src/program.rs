//! The program `ringmain`, which the laboratory starts as a user would: as the daemon, and for
//! processes as guests.

use std::io;
use std::path::{Path, PathBuf};

/// The name of the file.
const NAME: &str = "ringmain";

/// Which `ringmain` is measured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Program {
    /// Path of the program ringmain [default: ringmain in the folder of this program, else the
    /// first ringmain in PATH]
    #[arg(long = "daemon", value_name = "PATH", env = "RINGMAIN_DAEMON", hide_env_values = true)]
    path: Option<PathBuf>,
}

impl Program {
    /// The program in this file.
    pub fn at(path: impl Into<PathBuf>) -> Program {
        Program { path: Some(path.into()) }
    }

    /// Where the program is: the file that was named, one beside this program, or one in PATH.
    ///
    /// # Errors
    /// When there is none; the message says how to get one.
    pub fn find(&self) -> io::Result<PathBuf> {
        if let Some(path) = &self.path {
            return path.canonicalize().map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            });
        }
        let own = std::env::current_exe()?;
        let beside = own.parent().map(|folder| folder.join(NAME)).filter(|path| path.is_file());
        beside.or_else(in_path).ok_or_else(|| missing(&own))
    }
}

fn in_path() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(NAME)).find(|path| path.is_file())
}

fn missing(own: &Path) -> io::Error {
    let text = format!(
        "there is no {NAME} beside {} or in PATH; build it (cargo build --release) or name it \
         with --daemon",
        own.display()
    );
    io::Error::new(io::ErrorKind::NotFound, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_program_must_exist() {
        let error = Program::at("/nonexistent/ringmain").find().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/ringmain"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(Program::at(file.path()).find().unwrap(), file.path().canonicalize().unwrap());
    }
}
