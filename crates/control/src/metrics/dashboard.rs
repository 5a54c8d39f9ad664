//! The dashboard: files for a browser, and the figures that they show.
//!
//! The page has no outside resource, and no way to change anything. The page inserts names only as
//! text, so a hostile name cannot add markup. A Content-Security-Policy also forbids all other
//! scripts.

use serde::Serialize;

use crate::api::{EventReport, Stats, VERSION};

/// The page's own path.
pub const PAGE: &str = "/dashboard";
/// The path of the page's figures.
pub const STATE: &str = "/dashboard/state.json";

/// All files, by path, with their content types.
const FILES: [(&str, &str, &str); 6] = [
    (PAGE, "text/html; charset=utf-8", include_str!("dashboard/page.html")),
    ("/dashboard/page.css", "text/css; charset=utf-8", include_str!("dashboard/page.css")),
    ("/dashboard/page.js", SCRIPT, include_str!("dashboard/page.js")),
    ("/dashboard/diagram.js", SCRIPT, include_str!("dashboard/diagram.js")),
    ("/dashboard/figures.js", SCRIPT, include_str!("dashboard/figures.js")),
    ("/dashboard/icon.svg", "image/svg+xml", include_str!("dashboard/icon.svg")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The file at a path: its content type and its text.
pub fn file(path: &str) -> Option<(&'static str, &'static str)> {
    let found = FILES.iter().find(|(own, ..)| *own == path);
    found.map(|(_, content_type, text)| (*content_type, *text))
}

/// The statistics of `ringmain stats --json`, and the last events.
#[derive(Serialize)]
struct State<'a> {
    version: u32,
    #[serde(flatten)]
    stats: &'a Stats,
    events: Vec<EventReport>,
}

/// The figures as JSON.
///
/// # Errors
/// The reason why there are no figures.
pub fn state(stats: &Stats, events: Vec<EventReport>) -> Result<String, String> {
    let state = State { version: VERSION, stats, events };
    serde_json::to_string(&state).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files' references to each other lead to existing files.
    #[test]
    fn all_that_the_page_refers_to_is_there() {
        let (_, page) = file(PAGE).unwrap();
        let quoted = |text: &str, before: &str| -> Vec<String> {
            let parts = text.split(before).skip(1);
            parts.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
        };
        let mut links = quoted(page, "href=\"");
        links.extend(quoted(page, "src=\""));
        for script in ["/dashboard/page.js", "/dashboard/diagram.js", "/dashboard/figures.js"] {
            let (_, text) = file(script).unwrap();
            let imports = quoted(text, "from \"./").into_iter();
            links.extend(imports.map(|name| format!("dashboard/{name}")));
            links.extend(quoted(text, "fetch(\""));
        }
        assert!(links.len() > 10, "{links:?}");
        for link in links {
            let there = match link.strip_prefix('#') {
                Some(id) => page.contains(&format!("id=\"{id}\"")),
                None => file(&format!("/{link}")).is_some() || format!("/{link}") == STATE,
            };
            assert!(there, "{link} is not there");
        }
    }

    /// Text of the daemon's becomes text of the page, and nothing is loaded from elsewhere.
    #[test]
    fn no_file_makes_html_of_text_or_leaves_the_host() {
        for (path, _, text) in FILES {
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("]
            {
                assert!(!text.contains(forbidden), "{path} has {forbidden}");
            }
            // Names of XML vocabularies are no addresses.
            let addresses = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!addresses.contains("//www") && !addresses.contains("http"), "{path}");
            assert!(!text.contains(" style=") && !text.contains("onclick"), "{path}");
        }
    }

    #[test]
    fn figures_are_those_of_stats_with_events() {
        let event = EventReport { unix_ms: 1, level: "INFO".to_owned(), text: "ready".to_owned() };
        let text = state(&Stats::default(), vec![event]).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let object = json.as_object_mut().unwrap();
        assert_eq!(object.remove("version"), Some(VERSION.into()));
        assert_eq!(object.remove("events").unwrap()[0]["text"], "ready");
        assert_eq!(json, serde_json::to_value(Stats::default()).unwrap());
    }
}
