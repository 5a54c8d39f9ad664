//! The dashboard of a daemon with live traffic, in a browser.

mod browser;

use std::net::TcpListener;

use serde_json::{Value, json};

use super::{Site, ready, wait};
use browser::Browser;

/// A path that would be an element, and run a script, if it became HTML.
const PATH: &str = "/nowhere/<img src=x onerror=document.title='broken'>.raw";

/// The contrast of the text of every cell, note and heading with what is behind it, the least one.
const LEAST_CONTRAST: &str = "(() => {
  const channels = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (text) => {
    const [r, g, b] = channels(text).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return channels(colour)[3] === 0 ? behind(node.parentElement) : colour;
  };
  const contrast = (node) => {
    const [a, b] = [getComputedStyle(node).color, behind(node)].map(light);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const nodes = [...document.querySelectorAll('h1, h2, p, th, td, a, button, input, label')];
  return Math.min(...nodes.map(contrast));
})()";

/// The texts of all cells of a table.
fn table(browser: &mut Browser, id: &str) -> Vec<Vec<String>> {
    let rows = format!("[...document.querySelectorAll('#{id} tbody tr')]");
    let cells = "map((row) => [...row.cells].map((cell) => cell.textContent))";
    serde_json::from_value(browser.evaluate(&format!("{rows}.{cells}"))).unwrap()
}

/// The row of a table with that name.
fn row(browser: &mut Browser, id: &str, name: &str) -> Option<Vec<String>> {
    table(browser, id).into_iter().find(|cells| cells[0] == name)
}

/// Whether a cell has a rate that is known, and not zero.
fn moves(cell: &str) -> bool {
    cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.starts_with("0 ")
}

#[test]
#[ignore = "needs namespaces and chromium"]
fn a_browser_shows_live_traffic() {
    // Nobody else is likely to take the port in between.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("root.sock");
    let mut site = Site::with(&format!(
        "[[disk]]\nname = \"root\"\nkind = \"vhost-user\"\nsocket = {socket:?}\nimage = {PATH:?}\n\
         [metrics]\nlisten = \"{address}\"\ndashboard = true"
    ));
    let mut server = site.guest("server", "10.9.0.1", 2, "serve 10.9.0.1");
    ready(&mut server);
    let mut client = site.guest("client", "10.9.0.2", 2, "flood 10.9.0.1");
    ready(&mut client);

    let mut browser = Browser::start(&site.path("profile"));
    browser.call("Page.navigate", json!({ "url": format!("http://{address}/dashboard") }));
    wait(|| row(&mut browser, "ports", "guests/client").is_some_and(|cells| moves(&cells[3])));
    wait(|| row(&mut browser, "ports", "guests/server").is_some_and(|cells| moves(&cells[5])));
    let cells = row(&mut browser, "ports", "guests/client").unwrap();
    assert!(cells[2].contains("connected") && cells[8].contains('→'), "{cells:?}");
    let workers = table(&mut browser, "workers");
    assert_eq!(workers.len(), 2, "{workers:?}");
    assert!(workers.iter().any(|cells| cells[8].contains("guests/client:0")), "{workers:?}");
    wait(|| row(&mut browser, "latency", "worker 0").is_some_and(|cells| cells[3].contains("us")));
    let events = table(&mut browser, "events");
    assert!(events.iter().any(|cells| cells[2].starts_with("ready")), "{events:?}");
    let drawn = browser.evaluate("document.querySelector('#diagram').textContent");
    for text in ["guests/client", "guests/server", "worker 0", "worker 1", "switch"] {
        assert!(drawn.as_str().unwrap().contains(text), "{text} is not in {drawn}");
    }
    assert!(
        browser.evaluate("document.querySelectorAll('#diagram path.port').length").as_u64()
            >= Some(2)
    );

    // Text stays text.
    let disk = row(&mut browser, "disks", "root").unwrap();
    assert_eq!(disk[2], PATH);
    assert!(disk[1].contains("stopped"), "{disk:?}");
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.evaluate("document.title"), "Ringmain");

    // Wide and narrow, light and dark.
    let mut grounds = Vec::new();
    for (width, scheme) in [(1400, "light"), (1400, "dark"), (360, "light"), (360, "dark")] {
        browser.look(width, scheme);
        let wide = browser.evaluate("document.documentElement.scrollWidth").as_u64().unwrap();
        assert!(wide <= width.into(), "{width}: the page is {wide} wide");
        let contrast = browser.evaluate(LEAST_CONTRAST).as_f64().unwrap();
        assert!(contrast >= 4.5, "{scheme}: a contrast of {contrast}");
        grounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor"));
    }
    assert!(grounds[0] != grounds[1] && grounds[0] == grounds[2] && grounds[1] == grounds[3]);

    // By keyboard.
    browser.press("Tab", 9, "");
    assert_eq!(browser.evaluate("document.activeElement.id"), "pause");
    browser.press("Enter", 13, "\r");
    assert_eq!(browser.evaluate("document.activeElement.ariaPressed"), "true");
    browser.press("Enter", 13, "\r");
    assert_eq!(browser.evaluate("document.activeElement.ariaPressed"), "false");
    assert_eq!(browser.complaints(), [""; 0]);

    // A daemon that is gone is said to be.
    site.daemon = None;
    let answer = "document.querySelector('#answer').textContent";
    wait(|| matches!(browser.evaluate(answer), Value::String(text) if text.contains("No answer")));
}
