//! Folders of sockets: those that are missing are created for the daemon's user.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::identity::User;

/// Creates a folder and those above it. What is created belongs to the user.
pub fn create(folder: &Path, user: Option<&User>) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(folder)?;
    // Only the folder itself is given away: others may use the folders above it.
    match user {
        Some(user) if missing.contains(&folder) => chown(folder, Some(user.uid), Some(user.gid)),
        _ => Ok(()),
    }
}

/// Whether the folder exists, and the present rights do not allow creating sockets in it.
pub fn is_closed(folder: &Path) -> bool {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    let refused = accessat(CWD, folder, wanted, AtFlags::EACCESS).err();
    refused.is_some_and(|error| error != Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_created() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        create(&folder, None).unwrap();
        create(&folder, None).unwrap();
        assert!(!is_closed(&folder));
        assert!(is_closed(Path::new("/dev/null")) && !is_closed(&root.path().join("nowhere")));
    }
}
