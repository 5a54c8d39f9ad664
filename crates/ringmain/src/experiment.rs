//! Commands that experiment: the traffic generator, the demonstration, the comparisons and the
//! laboratory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::{bench, demo, experiment, load, model};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;
use crate::print;

/// `ringmain load`.
pub fn load(args: &load::Args) -> Result<(), Failure> {
    let stop = stop_flag().map_err(|error| Failure::System { what: "catch signals", error })?;
    let report = load::run_until(args, &stop)?;
    print(&if args.json { report.to_json() + "\n" } else { report.to_string() })?;
    if report.is_right() { Ok(()) } else { Err(Failure::Wrong) }
}

/// Becomes true at the first SIGINT or SIGTERM; the second one ends the process.
fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag set.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// `ringmain demo`.
pub fn demo(args: &demo::Args) -> Result<(), Failure> {
    Ok(demo::run(args)?)
}

/// `ringmain bench`.
pub fn bench(args: &bench::Args) -> Result<(), Failure> {
    Ok(bench::run(args)?)
}

/// `ringmain bench-embedded`.
pub fn bench_embedded(args: &bench::embedded::Args) -> Result<(), Failure> {
    Ok(bench::embedded::run(args)?)
}

/// `ringmain bench-xen`.
pub fn bench_xen(args: &bench::xen::Args) -> Result<(), Failure> {
    Ok(bench::xen::run(args)?)
}

/// `ringmain bench-instructions`.
pub fn bench_instructions(args: &bench::instructions::Args) -> Result<(), Failure> {
    Ok(bench::instructions::run(args)?)
}

/// `ringmain lab`.
pub fn lab(command: &experiment::Command) -> Result<(), Failure> {
    Ok(experiment::command(command)?)
}

/// `ringmain lab model`.
pub fn model(args: &model::Args) -> Result<(), Failure> {
    Ok(model::run(args)?)
}
