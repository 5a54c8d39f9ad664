//! The `ringmain` command.

#![forbid(unsafe_code)]

mod ask;
mod capture;
mod cli;
mod confine;
mod failure;
mod guest;
mod json;
mod limits;
mod log;
mod man;
mod notify;
mod output;
mod profile;
mod rates;
mod reload;
mod serve;
mod show;
mod show_disk;
mod show_overlay;
mod show_rules;
mod table;
mod units;
mod wait;
mod waiting;
mod watch;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use failure::Failure;
use output::print;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            // A configuration can have several mistakes, each on a line.
            failure.to_string().lines().for_each(|line| eprintln!("ringmain: {line}"));
            failure.code()
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let socket = cli.socket();
    match cli.command {
        Command::Guest(guest) => return Ok(ExitCode::from(guest::run(&socket, guest)?)),
        Command::Serve(ref args) => serve::run(cli.control(), args),
        Command::Reload(args) => ask::reload(&socket, &args),
        Command::Wait(args) => wait::run(&socket, &args),
        Command::Port(port) => ask::port(&socket, port),
        Command::Budget(budget) => ask::budget(&socket, budget),
        Command::Disk(disk) => ask::disk(&socket, disk),
        Command::Rules(rules) => ask::rules(&socket, rules),
        Command::Overlay(overlay) => ask::overlay(&socket, overlay),
        Command::Stats(args) => ask::stats(&socket, &args),
        Command::Profile(args) => ask::profile(&socket, &args),
        Command::Capture(args) => capture::run(&socket, args),
        Command::Mac(args) => ask::mac(&socket, args),
        Command::Completions { shell } => print(&completions(shell)?),
        Command::Man => print(&man::page()?),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A script that completes this command line in a shell.
fn completions(shell: clap_complete::Shell) -> io::Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ringmain", &mut script);
    String::from_utf8(script).map_err(io::Error::other)
}
