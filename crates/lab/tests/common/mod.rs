//! The programs that the tests run.

use std::process::Command;
use std::sync::Once;

/// `ringmain-lab`, which finds `ringmain` beside itself.
pub fn lab() -> Command {
    static BUILT: Once = Once::new();
    BUILT.call_once(build_daemon);
    Command::new(env!("CARGO_BIN_EXE_ringmain-lab"))
}

/// Builds `ringmain`: cargo builds the programs of the tested package only, and an older daemon
/// would be found beside them. The daemon comes with one of its own tests, out of the whole
/// workspace: built in any other way, its dependencies have other features, and are compiled once
/// more.
fn build_daemon() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = ["test", "-q", "--workspace", "--no-run", "--test", "command"];
    let status = Command::new(cargo).args(args).status().unwrap();
    assert!(status.success(), "cargo test --no-run: {status}");
}
