//! Compiles the program that guests run commands with.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The source of the program, relative to this package. It uses the standard library alone.
const AGENT: &str = "agent/main.rs";

/// Arguments for a program that needs no library of the guest, and few of its pages.
const ARGUMENTS: [&str; 9] = [
    "--edition=2024",
    "--crate-name=agent",
    "-Copt-level=s",
    "-Cpanic=abort",
    "-Clto=fat",
    "-Ccodegen-units=1",
    "-Crelocation-model=static",
    "-Ctarget-feature=+crt-static",
    "-Cstrip=symbols",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={AGENT}");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    compile_agent(rustc);
}

/// Compiles the program into the folder for what build scripts make.
fn compile_agent(rustc: OsString) {
    let variable = |name| std::env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let made = Path::new(&variable("OUT_DIR")).join("agent");
    let status = Command::new(rustc)
        .args(ARGUMENTS)
        .arg("--target")
        .arg(variable("TARGET"))
        .arg("-o")
        .arg(made)
        .arg(AGENT)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{AGENT} cannot be compiled");
}
