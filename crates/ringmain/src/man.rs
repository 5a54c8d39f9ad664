//! The manual page.

use std::io;

use clap::CommandFactory;

use crate::cli::Cli;

/// The sections that the command line's description does not contain.
const CONFIGURATION: &str = include_str!("man/configuration.roff");

/// The whole page, as roff: first `ringmain` itself, then each of its commands.
pub fn page() -> io::Result<String> {
    manual::page(Cli::command(), CONFIGURATION)
}

#[cfg(test)]
mod tests {
    use control::kind::Kind;

    use super::*;

    #[test]
    fn the_page_in_the_repository_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ringmain.1");
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            there == page().unwrap(),
            "out of date: cargo run -p ringmain -- man > docs/ringmain.1"
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
            let heading = match table.as_str() {
                "port" | "budget" | "overlay" | "disk" | "address-group" | "security-group" => {
                    format!(".SS [[{table}]]\n")
                }
                _ => format!(".SS [{table}]\n"),
            };
            let part = CONFIGURATION.split_once(&heading).map_or("", |(_, behind)| behind);
            let part = part.split("\n.S").next().unwrap_or_default();
            assert!(part.contains(&format!(".TP\n\\fB{key}\\fR = ")), "{table}.{key}");
        }
    }

    fn doc(name: &str) -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
        std::fs::read_to_string(format!("{path}{name}")).unwrap()
    }

    /// The line of a text that begins so.
    fn line(text: &str, start: &str) -> String {
        let found = text.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no line starts with {start}")).to_owned()
    }

    /// The help of a flag of `port add`.
    fn help(flag: &str) -> String {
        let command = Cli::command();
        let add = command.find_subcommand("port").unwrap().find_subcommand("add").unwrap();
        let flag = add.get_arguments().find(|argument| argument.get_id() == flag).unwrap();
        flag.get_help().unwrap().to_string()
    }

    /// Several texts list the kinds of ports.
    #[test]
    fn every_kind_of_port_is_named_where_kinds_are_listed() {
        let help = help("kind");
        let roff = line(CONFIGURATION, "\\fBkind\\fR = ");
        let key = line(&doc("configuration.md"), "| `port.kind` |");
        let field = line(&doc("json.md"), "| `kind` |");
        for kind in Kind::ALL {
            let name = kind.name();
            assert!(help.contains(name), "the help of --kind lacks {name}");
            assert!(roff.contains(&format!("{name:?}")), "configuration.roff lacks {name}");
            assert!(key.contains(&format!("`{name:?}`")), "configuration.md lacks {name}");
            let json = format!("`{}`", name.replace('-', "_"));
            assert!(field.contains(&json), "json.md lacks {json}");
        }
    }

    /// And several list those that can be mirrors.
    #[test]
    fn every_kind_of_mirror_is_named_where_mirrors_are_explained() {
        let texts = [
            ("the help of --mirror", help("mirror")),
            ("configuration.roff", line(CONFIGURATION, "The name of a mirror port of kind ")),
            ("configuration.md", line(&doc("configuration.md"), "| `port.mirror` |")),
            ("mirror.md", line(&doc("mirror.md"), "A mirror is another port of kind ")),
        ];
        for kind in Kind::ALL.into_iter().filter(|kind| kind.can_mirror()) {
            for (name, text) in &texts {
                assert!(text.contains(kind.name()), "{name} lacks {kind}: {text}");
            }
        }
    }

    fn pair((table, key): (&str, &str)) -> (String, String) {
        (table.into(), key.into())
    }

    #[test]
    fn every_command_has_its_part() {
        let page = page().unwrap();
        for name in [
            "serve",
            "port add",
            "port set",
            "port remove",
            "port list",
            "port show",
            "budget add",
            "budget set",
            "reload",
            "stats",
            "mac",
            "capture",
        ] {
            assert!(page.contains(&format!(".SS ringmain {name}\n")), "{name}");
        }
    }
}
