//! The manual page.

use std::io;

use clap::CommandFactory;

use crate::cli::Cli;

/// What the command line's description does not say.
const CONFIGURATION: &str = include_str!("man/configuration.roff");

/// The whole page, as roff: first `ringmain` itself, then each of its commands.
pub fn page() -> io::Result<String> {
    manual::page(Cli::command(), CONFIGURATION)
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
