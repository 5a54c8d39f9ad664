//! Streams between guests, and how their bytes are copied.

use super::*;

#[test]
#[ignore = "needs namespaces"]
fn streams_between_guests_with_one_two_and_four_queues() {
    let site = Site::start();
    for queues in [1, 2, 4] {
        let server = site.server(queues);
        assert!(site.connected("server"));
        let shown = site.ask(&["port", "show", "guests/server"]).unwrap();
        assert!(shown.contains(&format!("{queues} in use, 4 at most")), "{shown}");
        succeeds(site.guest("client", "10.9.0.2", queues, "send 10.9.0.1 8 64"));
        drop(server);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/"));
    }
}

/// How often streams are sent until a receiver was prompt. No receiver is prompt while other tests
/// use all CPUs, but these tests end.
const ATTEMPTS: usize = 300;

/// Bytes that the server has copied for itself so far.
fn copied(site: &Site) -> u64 {
    let shown = site.ask(&["port", "show", "guests/server"]).unwrap();
    let line = shown.lines().find_map(|line| line.strip_prefix("guest copies"));
    line.map_or(0, |line| line.split_whitespace().next().unwrap().parse().unwrap())
}

/// Receivers fetch what they get, out of what exactly is granted of it.
#[test]
#[ignore = "needs namespaces"]
fn streams_between_guests_that_copy_for_themselves() {
    let site = Site::with("copy = \"guest\"\ngrants = \"range\"");
    for queues in [1, 2, 4] {
        let server = site.server(queues);
        wait(|| site.connected("server"));
        let shown = site.ask(&["port", "show", "guests/server"]).unwrap();
        assert!(shown.contains("range-grants") && shown.contains("guest-copy"), "{shown}");
        // A receiver on a busy processor uses up its credit, also when it loses nothing, and the
        // backend copies for it until it has earned more. So streams are sent until it was prompt,
        // and has copied half of their bytes.
        let mut copies = Vec::new();
        let prompt = (0..ATTEMPTS).any(|_| {
            let before = copied(&site);
            succeeds(site.guest("client", "10.9.0.2", queues, "send 10.9.0.1 8 64"));
            let copied = copied(&site) - before;
            copies.push(copied);
            copied >= 8 * 32 * BLOCK as u64
        });
        let shown = || site.ask(&["port", "show", "guests/server"]).unwrap();
        assert!(prompt, "{copies:?} bytes\n{}", shown());
        drop(server);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/"));
    }
}

/// The number before `word` in what `port show` says of mapped pages.
fn mapped_pages(shown: &str, word: &str) -> u64 {
    let line = shown
        .lines()
        .find_map(|line| line.strip_prefix("mapped pages"))
        .unwrap_or_else(|| panic!("{shown}"));
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let at =
        words.iter().position(|other| *other == word).unwrap_or_else(|| panic!("{word} in {line}"));
    words[at - 1].parse().unwrap_or_else(|_| panic!("{word} in {line}"))
}

#[test]
#[ignore = "needs namespaces"]
fn streams_between_guests_whose_pages_stay_mapped() {
    let site = Site::start();
    for queues in [1, 2, 4] {
        let server = site.server(queues);
        let shown = || site.ask(&["port", "show", "guests/server"]).unwrap();
        // What is shown is up to date every other second.
        wait(|| mapped_pages(&shown(), "of") == u64::from(queues) * 768);
        succeeds(site.guest("client", "10.9.0.2", queues, "send 10.9.0.1 8 64"));
        wait(|| mapped_pages(&shown(), "hits") > 100);
        println!("{}", shown());
        assert_eq!(mapped_pages(&shown(), "misses"), 0);
        drop(server);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/"));
    }
}
