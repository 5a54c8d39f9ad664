//! A page's commands as one script.

use crate::{Block, Marker, Page, Part};

/// Waits for the daemon that a block in the background started.
const DAEMON_ANSWERS: &str = "until ringmain port list >/dev/null 2>&1; do sleep 0.05; done\n";

/// The script of the blocks of a page that are run, for bash, or nothing when there are none. It
/// writes the page's configurations to their files.
pub fn script(page: &Page) -> Option<String> {
    let parts = page.parts();
    let is_run = |part: &Part| {
        let Part::Block(block) = part else { return false };
        matches!(block.marker, Some(Marker::Run | Marker::Background))
    };
    if !parts.iter().any(is_run) {
        return None;
    }
    let mut script = String::from("set -eux\n");
    for part in &parts {
        match part {
            Part::Before(lines) => script.push_str(lines),
            Part::Block(block) => script.push_str(&lines(block)),
        }
    }
    Some(script)
}

fn lines(block: &Block) -> String {
    let text = &block.text;
    match &block.marker {
        Some(Marker::Run) => text.clone(),
        Some(Marker::Background) => format!("{{\n{text}}} &\n{DAEMON_ANSWERS}"),
        Some(Marker::File(name)) => format!("cat >{name} <<'END OF FILE'\n{text}END OF FILE\n"),
        Some(Marker::Needs(_)) | None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_marked_is_run() {
        let page = |text: &str| Page { name: "page.md".into(), text: text.into() };
        assert_eq!(script(&page("```sh\nrm -rf /\n```\n<!-- test: before\na\n-->\n")), None);
        let text = "<!-- test: file=a.toml -->\n```toml\nb = 1\n```\n\
                    <!-- test: run=background -->\n```sh\nserve\n```\n\
                    ```sh\nno\n```\n<!-- test: run -->\n```sh\nask\n```\n";
        let expected = format!(
            "set -eux\ncat >a.toml <<'END OF FILE'\nb = 1\nEND OF FILE\n\
             {{\nserve\n}} &\n{DAEMON_ANSWERS}ask\n"
        );
        assert_eq!(script(&page(text)), Some(expected));
    }
}
