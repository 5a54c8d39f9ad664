//! The manual page.

use std::io;

use clap::CommandFactory;

use crate::cli::Cli;

/// The sections that the description of the command line does not contain.
const SECTIONS: &str = include_str!("man/sections.roff");

/// The whole page, as roff.
pub fn page() -> io::Result<String> {
    manual::page(Cli::command(), SECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_the_repository_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ringmain-lab.1");
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == page().unwrap(),
            "write it anew: cargo run -p lab -- man > docs/ringmain-lab.1"
        );
    }

    #[test]
    fn every_command_has_a_section() {
        let page = page().unwrap();
        for name in
            ["load", "demo", "demo-disk", "bench", "bench-disk", "run", "report", "model", "serve"]
        {
            assert!(page.contains(&format!(".SS ringmain-lab {name}\n")), "{name}");
        }
        for section in ["EXAMPLES", "FILES", "ENVIRONMENT", "\"EXIT STATUS\""] {
            assert!(page.contains(&format!(".SH {section}\n")), "{section}");
        }
    }
}
