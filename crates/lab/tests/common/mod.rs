//! The programs that the tests run.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

/// `ringmain-lab`, which finds `ringmain` beside itself.
pub fn lab() -> Command {
    static BUILT: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_ringmain-lab"));
    BUILT.call_once(|| build_daemon(program));
    Command::new(program)
}

/// Builds `ringmain`, unless it is there: cargo builds the programs of the tested package only.
fn build_daemon(beside: &Path) {
    if beside.with_file_name("ringmain").exists() {
        return;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(["build", "-q", "-p", "ringmain"]).status().unwrap();
    assert!(status.success(), "cargo build -p ringmain: {status}");
}
