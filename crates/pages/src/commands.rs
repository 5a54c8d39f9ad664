//! The invocations of a program in blocks of shell commands and in running text.

use clap::Parser;
use clap::error::ErrorKind;

use crate::{Page, all};

/// Words of the shell that stand before a command.
const BEFORE: [&str; 9] = ["if", "then", "while", "until", "do", "!", "exec", "sudo", "time"];

/// The program, and the target of make, that counts instructions.
const COUNT: &str = "bench-instructions";

/// Checks a program's command line: whether it is consistent, and whether its parser accepts the
/// invocations in the pages.
///
/// # Panics
/// When one of the two does not hold.
pub fn check_command_line<C: Parser>(program: &str) {
    C::command().debug_assert();
    check_commands(program, |words| C::try_parse_from(words).map(drop));
}

/// Checks all invocations of a program, in all pages, with the parser of its command line.
///
/// Invocations in running text may lack arguments, and have names in the place of values.
///
/// # Panics
/// When the parser refuses one.
fn check_commands(program: &str, parse: impl Fn(&[String]) -> Result<(), clap::Error>) {
    let mut refused = Vec::new();
    let mut count = 0;
    for page in all() {
        for (command, is_whole) in invocations(&page, program) {
            count += 1;
            if let Err(error) = parse(&command)
                && is_wrong(error.kind(), is_whole)
            {
                refused.push(format!("{}: {}\n{error}", page.name, command.join(" ")));
            }
        }
    }
    assert!(count > 0, "no page has a command of {program}");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

fn is_wrong(kind: ErrorKind, is_whole: bool) -> bool {
    match kind {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => true,
        _ => is_whole,
    }
}

/// The invocations in a page, and whether they are complete.
fn invocations(page: &Page, program: &str) -> Vec<(Vec<String>, bool)> {
    let mut found = Vec::new();
    for block in page.blocks().into_iter().filter(|block| block.language == "sh") {
        let all = simple_commands(&block.text);
        found
            .extend(all.iter().filter_map(|words| invocation(words, program)).map(|it| (it, true)));
    }
    for span in code_spans(&page.text) {
        // A synopsis is not a command.
        if !span.contains(['[', '|', '\u{2026}']) {
            let all = simple_commands(span);
            found.extend(
                all.iter().filter_map(|words| invocation(words, program)).map(|it| (it, false)),
            );
        }
    }
    found
}

/// The program and its arguments, if that is what the words are.
fn invocation(words: &[String], program: &str) -> Option<Vec<String>> {
    let is_prefix = |word: &String| BEFORE.contains(&word.as_str()) || is_assignment(word);
    let words: Vec<String> = words.iter().skip_while(|word| is_prefix(word)).cloned().collect();
    let first = words.first()?;
    if first.rsplit('/').next() == Some(program) {
        return Some(words);
    }
    // `make TARGET ARGS="..."` runs the program of that name, or the laboratory's subcommand.
    let target = words.get(1).filter(|_| first == "make")?;
    let command = match (target.as_str(), program) {
        (COUNT, COUNT) => vec![program],
        (COUNT, _) => return None,
        (target, "ringmain-lab") => vec![program, target],
        _ => return None,
    };
    let arguments = words.iter().find_map(|word| word.strip_prefix("ARGS="))?;
    let command = command.into_iter().chain(arguments.split_whitespace());
    Some(command.map(str::to_owned).collect())
}

fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && is_name(name))
}

/// The text between single backticks, outside of fenced blocks.
fn code_spans(text: &str) -> Vec<&str> {
    let mut spans = Vec::new();
    // Every other part between fences is a block.
    for outside in text.split("\n```").step_by(2) {
        spans.extend(outside.split('`').skip(1).step_by(2));
    }
    spans
}

/// The simple commands of a script: their words, without redirections.
fn simple_commands(script: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut chars = script.chars().peekable();
    let end_word = |word: &mut Option<String>, commands: &mut Vec<Vec<String>>| {
        if let (Some(word), Some(command)) = (word.take(), commands.last_mut()) {
            command.push(word);
        }
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
            },
            '\'' | '"' => {
                word.get_or_insert_default().extend(chars.by_ref().take_while(|d| *d != c))
            }
            '#' if word.is_none() => while chars.next_if(|d| *d != '\n').is_some() {},
            '>' | '<' => {
                // The number before it, and the file behind it.
                word.take_if(|word| word.chars().all(|c| c.is_ascii_digit()));
                end_word(&mut word, &mut commands);
                while chars.next_if(|d| !d.is_whitespace() && *d != ';').is_some() {}
            }
            ';' | '|' | '&' | '\n' | '(' | ')' => {
                end_word(&mut word, &mut commands);
                commands.push(Vec::new());
            }
            c if c.is_whitespace() => end_word(&mut word, &mut commands),
            c => word.get_or_insert_default().push(c),
        }
    }
    end_word(&mut word, &mut commands);
    commands.retain(|command| !command.is_empty());
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_scripts() {
        let script = "until ringmain port list >/dev/null 2>&1; do sleep 1; done\n\
                      A=1 ringmain guest --name 'a b' \\\n  -- iperf -s &   # a comment; ringmain no\n\
                      printf x | ringmain mac";
        let found: Vec<Vec<String>> = simple_commands(script)
            .iter()
            .filter_map(|words| invocation(words, "ringmain"))
            .collect();
        let words = |all: &[&str]| all.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                words(&["ringmain", "port", "list"]),
                words(&["ringmain", "guest", "--name", "a b", "--", "iperf", "-s"]),
                words(&["ringmain", "mac"]),
            ]
        );
    }

    #[test]
    fn the_arguments_of_make_are_those_of_a_subcommand() {
        let commands = simple_commands("make bench ARGS=\"--only 64 --runs 9\"");
        let found = invocation(&commands[0], "ringmain-lab").unwrap();
        assert_eq!(found, ["ringmain-lab", "bench", "--only", "64", "--runs", "9"]);
        let commands = simple_commands("make bench-instructions ARGS=--record");
        let found = |program| invocation(&commands[0], program);
        assert_eq!(found("bench-instructions").unwrap(), ["bench-instructions", "--record"]);
        assert_eq!(found("ringmain-lab"), None);
    }

    #[test]
    fn commands_are_found_in_running_text() {
        let text =
            "See `ringmain port show NAME` and `make`.\n\n```sh\nringmain no\n```\n`ringmain`\n";
        assert_eq!(code_spans(text), ["ringmain port show NAME", "make", "ringmain"]);
    }

    #[test]
    fn a_command_in_running_text_may_be_incomplete() {
        assert!(!is_wrong(ErrorKind::MissingRequiredArgument, false));
        assert!(is_wrong(ErrorKind::MissingRequiredArgument, true));
        assert!(is_wrong(ErrorKind::UnknownArgument, false));
    }
}
