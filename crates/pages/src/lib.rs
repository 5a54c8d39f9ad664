//! Reads the commands and configurations in the project's Markdown pages. Tests run or check them,
//! so that pages stay true.
//!
//! A comment says what a test does with the fenced block below it. The comment is invisible in the
//! rendered page. Each block of shell commands has one:
//!
//! - `<!-- test: run -->`: the block is part of the page's script, which is run.
//! - `<!-- test: run=background -->`: the same, for a command that serves until it is killed.
//! - `<!-- test: needs=WHAT -->`: the block is not run, since it takes what not every machine has.
//!   Its `ringmain` and `ringmain-lab` commands are parsed all the same. Above a configuration: it
//!   is not checked.
//! - `<!-- test: before`, lines of shell, `-->`: these lines are part of the page's script.
//!
//! `<!-- test: file=NAME -->` above a configuration or another file says that the page's script
//! finds it under that name.

#![forbid(unsafe_code)]

mod commands;
mod script;

use std::fs;
use std::path::{Path, PathBuf};

pub use commands::check_command_line;
pub use script::script;

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its path, from the project's root.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A comment about the block below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The block is run.
    Run,
    /// The block is run in the background.
    Background,
    /// The block is the content of this file.
    File(String),
    /// The block needs something that not every machine has.
    Needs(String),
}

/// A part of a page that a test looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A fenced block.
    Block(Block),
    /// Shell lines in a comment.
    Before(String),
}

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of the page in which its text begins.
    pub line: usize,
    /// The word behind the opening fence, such as `sh`.
    pub language: String,
    /// The lines between the fences.
    pub text: String,
    /// The comment above it.
    pub marker: Option<Marker>,
}

/// All pages of the project.
///
/// # Panics
/// When they cannot be read.
pub fn all() -> Vec<Page> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths: Vec<PathBuf> = [root.clone(), root.join("docs")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    paths.sort();
    let page = |path: PathBuf| Page {
        name: path.strip_prefix(&root).unwrap().display().to_string(),
        text: fs::read_to_string(&path).unwrap(),
    };
    paths.into_iter().map(page).collect()
}

impl Page {
    /// Its fenced blocks and the shell lines in its comments, in order.
    ///
    /// # Panics
    /// When a comment for tests is unknown.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut marker = None;
        let mut lines = self.text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let place = format!("{}:{}", self.name, number + 1);
            if let Some(language) = line.strip_prefix("```") {
                let text = until(&mut lines, "```", &place);
                parts.push(Part::Block(Block {
                    line: number + 2,
                    language: language.to_owned(),
                    text,
                    marker: marker.take(),
                }));
            } else if line == "<!-- test: before" {
                parts.push(Part::Before(until(&mut lines, "-->", &place)));
            } else if let Some(text) = line.strip_prefix("<!-- test:") {
                let text = text.strip_suffix("-->").unwrap_or_else(|| panic!("{place}: no end"));
                marker =
                    Some(Marker::parse(text.trim()).unwrap_or_else(|| panic!("{place}: {text}?")));
            } else if !line.is_empty() {
                assert_eq!(marker, None, "{place}: a comment for a test has no block below it");
            }
        }
        parts
    }

    /// Its fenced blocks.
    pub fn blocks(&self) -> Vec<Block> {
        let block = |part| match part {
            Part::Block(block) => Some(block),
            Part::Before(_) => None,
        };
        self.parts().into_iter().filter_map(block).collect()
    }
}

impl Marker {
    fn parse(text: &str) -> Option<Marker> {
        match text {
            "run" => Some(Marker::Run),
            "run=background" => Some(Marker::Background),
            _ => match text.split_once('=')? {
                ("file", name) => Some(Marker::File(name.to_owned())),
                ("needs", what) => Some(Marker::Needs(what.to_owned())),
                _ => None,
            },
        }
    }
}

/// The lines up to one that is `end`.
fn until<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, end: &str, place: &str) -> String {
    let mut text = String::new();
    loop {
        match lines.next() {
            Some((_, line)) if line == end => return text,
            Some((_, line)) => text.extend([line, "\n"]),
            None => panic!("{place}: {end} is missing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_marker_above_them() {
        let text = "# Title\n\n<!-- test: run -->\n```sh\na\nb\n```\n\n<!-- test: before\nc\n-->\n\
                    ```toml\nd\n```\n<!-- test: needs=xen -->\n\n```sh\ne\n```\n";
        let page = Page { name: "page.md".into(), text: text.into() };
        let block = |line, language: &str, text: &str, marker| {
            Part::Block(Block { line, language: language.into(), text: text.into(), marker })
        };
        assert_eq!(
            page.parts(),
            [
                block(5, "sh", "a\nb\n", Some(Marker::Run)),
                Part::Before("c\n".into()),
                block(13, "toml", "d\n", None),
                block(18, "sh", "e\n", Some(Marker::Needs("xen".into()))),
            ]
        );
    }

    #[test]
    fn each_block_of_commands_says_whether_it_is_run() {
        let mut without = Vec::new();
        for page in all() {
            let sh = page.blocks().into_iter().filter(|block| block.language == "sh");
            let open = sh.filter(|block| block.marker.is_none());
            without.extend(open.map(|block| format!("{}:{}", page.name, block.line)));
        }
        let what = "put <!-- test: run --> or <!-- test: needs=WHAT --> above these blocks";
        assert!(without.is_empty(), "{what}: {without:#?}");
    }

    /// All Rust files in a folder.
    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// The lines of doc comments at which a block begins that rustdoc takes for a test.
    fn doc_tests(source: &str) -> Vec<usize> {
        let (mut lines, mut inside) = (Vec::new(), false);
        for (number, line) in (1..).zip(source.lines()) {
            let line = line.trim_start();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            let Some(language) = doc.and_then(|doc| doc.trim().strip_prefix("```")) else {
                continue;
            };
            inside = !inside;
            if inside && language != "text" {
                lines.push(number);
            }
        }
        lines
    }

    #[test]
    fn doc_comments_have_no_tests() {
        assert_eq!(doc_tests("/// ```text\n/// ```\n/// ```\n/// x();\n/// ```\n"), [3]);
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        sources(&crates, &mut found);
        assert!(found.len() > 100, "{} files", found.len());
        let tests = found.iter().flat_map(|path| {
            let lines = doc_tests(&fs::read_to_string(path).unwrap());
            lines.into_iter().map(move |line| format!("{}:{line}", path.display()))
        });
        let tests: Vec<String> = tests.collect();
        // `scripts/test` does not run rustdoc, which would take half a minute to find nothing.
        assert!(tests.is_empty(), "write these as unit tests, or mark them as text: {tests:#?}");
    }
}
