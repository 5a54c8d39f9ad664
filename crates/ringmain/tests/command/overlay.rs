//! Two daemons, in their sandboxes, whose guests are in one network.

use super::*;

/// A daemon at an address of the loopback interface, with the other one as its peer.
fn host(own: &str, other: &str, port: u16, more: &str) -> Daemon {
    let config = format!(
        "[workers]\ncount = 2\n\n[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\n\
         socket = \"DIR/vm.sock\"\n\n[[overlay]]\nname = \"net\"\nvni = 100\nlocal = \"{own}\"\n\
         port = {port}\npeers = [\"{other}\"]\n{more}"
    );
    Daemon::start(&config)
}

fn port(low: u16) -> u16 {
    low + (std::process::id() % 10_000) as u16
}

#[test]
fn guests_of_two_daemons_reach_each_other() {
    let port = port(41_000);
    let (a, b) =
        (host("127.0.0.1", "127.0.0.2", port, ""), host("127.0.0.2", "127.0.0.1", port, ""));
    let sockets = format!("{},{}", a.path("vm.sock").display(), b.path("vm.sock").display());
    let options = "--direction both --size 900 --rate 20000 --duration 0.3 --warm-up 0";
    let words = ["--ports", &sockets].into_iter().chain(options.split(' '));
    let report = load::run(&load::Args::from_words(words).unwrap()).unwrap();
    assert!(report.directions.iter().all(|direction| direction.received > 100), "{report}");
    let shown = a.json(&["overlay", "show", "--json"]);
    let net = &shown["overlays"][0];
    assert_eq!((&net["state"], &net["local"]), (&"connected".into(), &"127.0.0.1".into()));
    let count = |key: &str| net[key].as_u64().unwrap();
    assert!(count("datagrams_sent") > 100 && count("datagrams_received") > 100, "{shown:#}");
    let peers = a.json(&["overlay", "peers", "net", "--json"]);
    assert!(peers["peers"][0]["frames"].as_u64().unwrap() > 100, "{peers:#}");
    let macs = a.ask(&["overlay", "macs"]);
    assert!(macs.contains("127.0.0.2  learned"), "{macs}");
    assert!(a.ask(&["port", "list"]).contains("net/100/127.0.0.2"));
    let unknown = a.refuse(1, &["overlay", "show", "x"]);
    assert!(unknown.contains("there is no overlay \"x\""), "{unknown}");
}

#[test]
fn peers_and_stations_change_in_service() {
    let more = "macs = [\"52:54:00:00:00:02=127.0.0.2\"]\nlearning = false\n";
    let mut a = host("127.0.0.1", "127.0.0.2", port(51_000), more);
    assert!(a.ask(&["overlay", "macs"]).contains("52:54:00:00:00:02  127.0.0.2  static"));
    let file = a.path("ringmain.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("127.0.0.2", "127.0.0.3")).unwrap();
    let reload = a.ask(&["reload"]);
    assert!(reload.contains("overlay net") && reload.contains("peers"), "{reload}");
    assert!(a.ask(&["overlay", "macs"]).contains("52:54:00:00:00:02  127.0.0.3  static"));
    assert!(!a.ask(&["port", "list"]).contains("127.0.0.2"));
    fs::write(&file, text.split("[[overlay]]").next().unwrap()).unwrap();
    assert!(a.ask(&["reload"]).contains("remove"));
    assert!(a.ask(&["overlay", "show"]).starts_with("no overlays"));
    assert!(a.end().success());
}
