//! HTML pages that need no other file.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:56em;margin:2em auto;padding:0 1em}\
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:right;vertical-align:top}\
table.facts th,table.facts td{text-align:left}th{font-weight:600}\
.wide{overflow-x:auto;font-size:.85em;min-width:100%;width:max-content;max-width:calc(50vw + 26em)}\
.wide th{max-width:9em}\
figure{margin:2em 0;border-top:1px solid #ccc}figcaption{font-weight:600;margin:.5em 0}svg{max-width:100%;height:auto}";

/// A whole page.
pub fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                (body)
            }
        }
    };
    page.into_string()
}

/// A plot with its caption above, so that the caption does not look like the heading of the next
/// plot.
pub fn figure(caption: &str, svg: &str) -> Markup {
    html! { figure { figcaption { (caption) } (PreEscaped(svg)) } }
}

/// A table of names and their values.
pub fn facts(facts: &[(&str, String)]) -> Markup {
    html! {
        table.facts {
            @for (name, value) in facts {
                tr { th { (name) } td { (value) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_guest_cannot_become_markup() {
        let table = facts(&[("a & b", "<script>".into())]).into_string();
        assert!(table.contains("a &amp; b") && table.contains("&lt;script&gt;"), "{table}");
    }

    #[test]
    fn a_page_loads_nothing() {
        let page = page("t", &html! { p { "x" } });
        assert!(
            page.starts_with("<!DOCTYPE html>") && !page.contains("http") && !page.contains("src="),
            "{page}"
        );
    }
}
