//! The links of the pages lead somewhere: to files that exist, to headings that exist, and, where
//! a link names a line of the code, to a line near the function or type that the link names.

use std::fs;
use std::path::Path;

/// How far a line may be from what its link names, so that a link to a line does not have to follow
/// each change above that line.
const NEAR: usize = 10;

/// A Markdown link: `[text](target)`.
struct Link<'a> {
    text: &'a str,
    target: &'a str,
}

#[test]
fn links_of_pages_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    for page in pages::all() {
        for link in links(&page.text).filter(|link| !link.target.contains("://")) {
            if let Some(problem) = problem(&root.join(&page.name), &link) {
                wrong.push(format!("{}: {}: {problem}", page.name, link.target));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn links(text: &str) -> impl Iterator<Item = Link<'_>> {
    text.match_indices("](").filter_map(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + 2..]);
        let target = behind.split_once(')')?.0;
        let text = before.rsplit_once('[')?.1;
        (!target.contains(char::is_whitespace)).then_some(Link { text, target })
    })
}

/// The problem with a link, if any.
fn problem(page: &Path, link: &Link<'_>) -> Option<String> {
    let (path, place) = link.target.split_once('#').unwrap_or((link.target, ""));
    let file = if path.is_empty() { page.to_owned() } else { page.parent()?.join(path) };
    if !file.exists() {
        return Some("there is no such file".into());
    }
    if place.is_empty() {
        return None;
    }
    let text = fs::read_to_string(&file).ok()?;
    match place.strip_prefix('L').and_then(|line| line.parse::<usize>().ok()) {
        Some(line) => far_from_line(&text, line, link.text.trim_matches('`')),
        None if headings(&text).any(|heading| heading == place) => None,
        None => Some("there is no such heading".into()),
    }
}

/// Says where `name` is, if it is not near line `line`.
fn far_from_line(text: &str, line: usize, name: &str) -> Option<String> {
    let name = name.rsplit("::").next().unwrap_or(name);
    let defines = |line: &str| {
        ["fn", "struct", "enum", "trait", "mod"].into_iter().any(|word| {
            line.split_once(&format!("{word} {name}")).is_some_and(|(_, behind)| {
                !behind.starts_with(|c: char| c.is_alphanumeric() || c == '_')
            })
        })
    };
    let found: Vec<usize> =
        (1..).zip(text.lines()).filter(|(_, line)| defines(line)).map(|(at, _)| at).collect();
    if found.iter().any(|at| at.abs_diff(line) <= NEAR) {
        return None;
    }
    Some(format!("`{name}` is at line {found:?} now"))
}

/// The headings of a page as the targets of links.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let mut fenced = false;
    let lines = text.lines().filter(move |line| {
        fenced ^= line.starts_with("```");
        !fenced && line.starts_with('#')
    });
    lines.map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
