//! Manual pages, made from the description of a command line, so that the two cannot disagree.

#![forbid(unsafe_code)]

use std::io;

use clap::Command;
use clap_mangen::Man;

/// The manual page of a program, as roff: the program itself, each of its subcommands, then
/// `sections`, which is roff that the description of the command line does not contain.
///
/// # Errors
/// When a name or a help text is not UTF-8.
pub fn page(program: Command, sections: &str) -> io::Result<String> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let man = Man::new(program.clone()).manual("Ringmain").section("1");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend_from_slice(b".SH SYNOPSIS\n");
    page.extend_from_slice(synopsis(&program).as_bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    page.extend_from_slice(b".SH COMMANDS\n");
    for command in leaves(&program) {
        page.extend(command_section(command)?);
    }
    page.extend_from_slice(sections.as_bytes());
    String::from_utf8(page).map_err(io::Error::other)
}

/// The usage of the program, with the values of its options.
fn synopsis(program: &Command) -> String {
    let common = program.get_opts().filter(|option| !option.is_hide_set());
    let options: Vec<String> = common
        .map(|option| {
            let values = option.get_value_names().unwrap_or_default();
            let long = option.get_long().unwrap_or_default();
            let values: String = values.iter().map(|name| format!(" <{name}>")).collect();
            format!("[\\-\\-{long}{values}] ")
        })
        .collect();
    let name = program.get_name().replace('-', "\\-");
    format!("\\fB{name}\\fR {}<COMMAND>\n", options.concat())
}

/// Commands without subcommands, in the order of the help text.
fn leaves(command: &Command) -> Vec<&Command> {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    visible
        .flat_map(|command| if command.has_subcommands() { leaves(command) } else { vec![command] })
        .collect()
}

/// The part of the page for one command. Options that all commands have are described once, above.
fn command_section(command: &Command) -> io::Result<Vec<u8>> {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let usage = command.clone().render_usage().to_string();
    let common = |arg: &clap::Arg| {
        arg.is_global_set() || matches!(arg.get_id().as_str(), "help" | "version")
    };
    let man =
        Man::new(command.clone().mut_args(|arg| if common(&arg) { arg.hide(true) } else { arg }));
    let mut text = Vec::new();
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let is_heading =
        |line: &&str| [".SH ", ".ie ", ".el "].iter().any(|start| line.starts_with(start));
    let body: Vec<&str> = text.lines().filter(|line| !is_heading(line)).collect();
    let usage = usage.trim_start_matches("Usage: ").replace('\n', " ").replace('-', "\\-");
    Ok(format!(".SS {name}\n.B {usage}\n.PP\n{}\n", body.join("\n")).into_bytes())
}
