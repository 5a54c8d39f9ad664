//! HTML pages that need nothing but themselves.

use std::fmt::Write;

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:56em;margin:2em auto;padding:0 1em}\
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:right;vertical-align:top}\
table.facts th,table.facts td{text-align:left}th{font-weight:600}.wide{overflow-x:auto}\
figure{margin:1em 0}svg{max-width:100%;height:auto}";

/// A whole page around a body of HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}

/// Text as it must stand in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A table of names and what they are.
pub fn facts(facts: &[(&str, String)]) -> String {
    let mut table = String::from("<table class=\"facts\">\n");
    for (name, value) in facts {
        // Writing to a string does not fail.
        let _ = writeln!(table, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    table.push_str("</table>\n");
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_said_cannot_become_markup() {
        let table = facts(&[("a & b", "<script>".into())]);
        assert!(table.contains("a &amp; b") && table.contains("&lt;script&gt;"), "{table}");
    }

    #[test]
    fn a_page_asks_for_nothing_from_outside() {
        let page = page("t", "<p>x</p>");
        assert!(
            page.starts_with("<!DOCTYPE html>") && !page.contains("http") && !page.contains("src="),
            "{page}"
        );
    }
}
