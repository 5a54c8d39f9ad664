//! Default folders: those of the clone that this program was built in, wherever the user stands.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

/// The stand-in for the clone at the beginning of a default.
const CLONE: &str = "CLONE/";

/// A folder or file of the command line. In defaults `CLONE/` stands for the clone, or for the
/// current folder where the program was installed elsewhere.
///
/// # Errors
/// None.
pub fn folder(text: &str) -> Result<PathBuf, Infallible> {
    let Some(rest) = text.strip_prefix(CLONE) else { return Ok(text.into()) };
    let program = std::env::current_exe().unwrap_or_default();
    Ok(clone_of(&program).map_or_else(|| rest.into(), |clone| clone.join(rest)))
}

/// The folder with what `scripts/deps` fetched and built, for tests of the package in the folder
/// `package`: that of the variable `RINGMAIN_CACHE`, or `.cache` in the clone of the package.
pub fn cache(package: &str) -> PathBuf {
    let cache = std::env::var_os("RINGMAIN_CACHE").map(PathBuf::from);
    cache.unwrap_or_else(|| Path::new(package).join("../../.cache"))
}

/// The clone around a program in its `target` folder.
fn clone_of(program: &Path) -> Option<&Path> {
    program.ancestors().skip(1).find(|folder| folder.join("scripts/deps").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_the_clone_and_named_folders_where_they_are() {
        let clone = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(clone.path().join("scripts")).unwrap();
        std::fs::write(clone.path().join("scripts/deps"), "").unwrap();
        assert_eq!(clone_of(&clone.path().join("target/release/x")), Some(clone.path()));
        assert_eq!(clone_of(Path::new("/usr/local/bin/x")), None);
        assert_eq!(folder("out/demo").unwrap(), Path::new("out/demo"));
        assert!(folder("CLONE/out/demo").unwrap().ends_with("out/demo"));
    }
}
