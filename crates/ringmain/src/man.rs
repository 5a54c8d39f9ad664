//! The manual page, made from the command line's own description, so that the two cannot disagree.

use std::io;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;

/// What the command line's description does not say.
const CONFIGURATION: &str = include_str!("man/configuration.roff");

/// The whole page, as roff: first `ringmain` itself, then each of its commands.
pub fn page() -> io::Result<String> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let man = Man::new(command.clone()).manual("Ringmain").section("1");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    page.extend_from_slice(b".SH COMMANDS\n");
    for command in leaves(&command) {
        page.extend(section(command)?);
    }
    page.extend_from_slice(CONFIGURATION.as_bytes());
    String::from_utf8(page).map_err(io::Error::other)
}

/// Commands without commands below them, in the order of the help text.
fn leaves(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    below
        .flat_map(|command| if command.has_subcommands() { leaves(command) } else { vec![command] })
        .collect()
}

/// One command, as a part of the page. Options that all commands have are told once, above.
fn section(command: &Command) -> io::Result<Vec<u8>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_the_repository_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ringmain.1");
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            there == page().unwrap(),
            "write it anew: cargo run -p ringmain -- man > docs/ringmain.1"
        );
    }

    #[test]
    fn every_key_of_the_configuration_has_its_part() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let docs = std::fs::read_to_string(path).unwrap();
        let key =
            |line: &str| line.strip_prefix("| `")?.split_once('`')?.0.split_once('.').map(pair);
        let keys: Vec<(String, String)> = docs.lines().filter_map(key).collect();
        assert!(keys.len() > 20, "{keys:?}");
        for (table, key) in keys {
            let heading =
                if table == "port" { ".SS [[port]]\n".into() } else { format!(".SS [{table}]\n") };
            let part = CONFIGURATION.split_once(&heading).map_or("", |(_, behind)| behind);
            let part = part.split("\n.S").next().unwrap_or_default();
            assert!(part.contains(&format!(".TP\n\\fB{key}\\fR = ")), "{table}.{key}");
        }
    }

    fn pair((table, key): (&str, &str)) -> (String, String) {
        (table.into(), key.into())
    }

    #[test]
    fn every_command_has_its_part() {
        let page = page().unwrap();
        for name in ["serve", "port add", "port remove", "port list", "port show", "stats", "mac"] {
            assert!(page.contains(&format!(".SS ringmain {name}\n")), "{name}");
        }
    }
}
