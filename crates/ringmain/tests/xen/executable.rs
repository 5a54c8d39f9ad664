//! Executables of other tests of the workspace, to be run in dom0 or in a guest.

use std::path::PathBuf;
use std::process::Command;

/// Builds a test, unless it is built, and says where it is. It is built out of the whole workspace,
/// as `make test` builds it: alone, libraries have other features and are compiled once more.
pub fn executable(test: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["test", "--workspace", "--test", test, "--no-run", "--message-format=json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stdout);
    let mut messages =
        said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    // The programs that the test starts are built with it.
    let found = messages.find_map(|message| {
        let is_test = message["target"]["name"] == test;
        message["executable"].as_str().filter(|_| is_test).map(PathBuf::from)
    });
    found.unwrap_or_else(|| panic!("no {test}: {}", String::from_utf8_lossy(&built.stderr)))
}
