//! The `ringmain` command.

#![forbid(unsafe_code)]

mod ask;
mod cli;
mod failure;
mod guest;
mod man;
mod profile;
mod rates;
mod serve;
mod show;
mod table;
mod waiting;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("ringmain: {failure}");
            failure.code()
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let socket = cli.socket();
    match cli.command {
        Command::Guest(guest) => return Ok(ExitCode::from(guest::run(&socket, guest)?)),
        Command::Serve(args) => serve::run(cli.control, &args),
        Command::Port(port) => ask::port(&socket, port),
        Command::Stats(args) => ask::stats(&socket, &args),
        Command::Profile(args) => ask::profile(&socket, &args),
        Command::Mac(args) => ask::mac(&socket, &args),
        Command::Man => print(&man::page()?),
    }?;
    Ok(ExitCode::SUCCESS)
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
