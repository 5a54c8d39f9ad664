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
/// would be found beside them. Out of the whole workspace, as tests are: alone, the daemon would have
/// other features of its dependencies, and all of them would be compiled again.
fn build_daemon() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "-q", "--workspace", "--bin", "ringmain"])
        .status()
        .unwrap();
    assert!(status.success(), "cargo build: {status}");
}
