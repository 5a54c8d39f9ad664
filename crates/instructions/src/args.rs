//! The command line.

use std::path::PathBuf;

use clap::Parser;
use clap::builder::PossibleValuesParser;

use crate::case;

/// Count instructions per frame between guests, step by step
///
/// valgrind runs the program itself, and counts the rounds of a worker.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench-instructions", version, max_term_width = 100)]
pub struct Args {
    /// Only these cases [default: all]
    #[arg(long, value_name = "CASE,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(case::names()))]
    pub only: Vec<String>,

    /// Also show the N source files with the most instructions in each case
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "json")]
    pub files: usize,

    /// Fail if a case takes more instructions than the budget says, or far fewer
    #[arg(long)]
    pub check: bool,

    /// Record the counts as the new budget
    #[arg(long, conflicts_with_all = ["check", "only"])]
    pub record: bool,

    /// File of the budget
    #[arg(long, value_name = "FILE", default_value = "crates/instructions/budget.toml")]
    pub budget: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "out/bench-instructions")]
    pub out: PathBuf,

    /// Be what is counted
    #[arg(long, value_name = "CASE", hide = true)]
    pub play: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_as_pages_print_it() {
        pages::check_command_line::<Args>("bench-instructions");
    }
}
