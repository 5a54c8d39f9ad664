//! The `ringmain-lab` command.

#![forbid(unsafe_code)]

mod cli;
mod failure;
mod man;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use lab::{bench, demo, disk_demo, model, serve, suite};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use cli::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ringmain-lab: {failure}");
            failure.code()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Load(args) => generate(&args)?,
        Command::Demo(args) => demo::run(&args)?,
        Command::DemoDisk(args) => disk_demo::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
        Command::BenchCopy(args) => print(&bench::copies::table(&args))?,
        Command::BenchDisk(args) => bench::disk::run(&args)?,
        Command::BenchEmbedded(args) => bench::embedded::run(&args)?,
        Command::BenchXen(args) => bench::xen::run(&args)?,
        Command::BenchXenDisk(args) => bench::xen::disk::run(&args)?,
        Command::BenchIsolation(args) => bench::isolation::run(&args)?,
        Command::BenchOverlay(args) => bench::overlay::run(&args)?,
        Command::BenchInterruptThread(args) => print(&bench::interrupt_thread::table(&args)?)?,
        Command::BenchSignal(args) => print(&bench::signals::table(&args)?)?,
        Command::BenchMigration(args) => bench::migration::run(&args)?,
        Command::Experiments(command) => suite::command(&command)?,
        Command::Model(args) => model::run(&args)?,
        Command::Serve(args) => serve::run(&args)?,
        Command::BareCopy(args) => bench::ceiling::run(&args)?,
        Command::BareDisk(args) => bench::bare_disk::run(&args)?,
        Command::BareWire(args) => demo::bare_wire::run(&args)?,
        Command::GrantCopies(args) => bench::xen::grant_copies::run(&args)?,
        Command::Man => print(&man::page()?)?,
    }
    Ok(())
}

/// `ringmain-lab load`.
fn generate(args: &load::Args) -> Result<(), Failure> {
    let stop = stop_flag().map_err(Failure::Signals)?;
    let report = load::run_until(args, &stop)?;
    print(&if args.json { report.to_json() + "\n" } else { report.to_string() })?;
    if report.is_right() { Ok(()) } else { Err(Failure::Wrong) }
}

/// Becomes true at the first SIGINT or SIGTERM; the second one ends the process.
fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the second signal must find the flag set.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Writes to standard output. A reader that has gone away, as `head` does, is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::Output(error)),
        Ok(()) => Ok(()),
    }
}
