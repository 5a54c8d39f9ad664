//! Folders of sockets: those that are missing are created for the daemon's user.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::identity::User;

/// Creates a folder and those above it. What is created belongs to the user.
pub fn create(folder: &Path, user: Option<&User>) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(folder)?;
    // Only the folder itself: a folder above it may be one that others will use.
    match user {
        Some(user) if missing.contains(&folder) => chown(folder, Some(user.uid), Some(user.gid)),
        _ => Ok(()),
    }
}

/// Whether sockets can be created in the folder by what is effective now.
pub fn is_writable(folder: &Path) -> bool {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, folder, wanted, AtFlags::EACCESS).is_ok()
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
        assert!(is_writable(&folder));
        assert!(!is_writable(Path::new("/proc/1/nowhere")));
    }
}
