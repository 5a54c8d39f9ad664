//! Frames that the traffic generator sends by a TAP, for its guests.

use std::path::Path;

use lab::daemon::Daemon;
use lab::guest::Namespace;

const GUESTS: usize = 3;

fn config(dir: &Path) -> String {
    let guest = |number: usize| {
        let socket = dir.join(format!("{number}.sock"));
        format!(
            "[[port]]\nname = \"guest-{number}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n",
            socket.display()
        )
    };
    let guests: String = (0..GUESTS).map(guest).collect();
    format!("[[port]]\nname = \"uplink\"\nkind = \"tap\"\ndevice = \"rm0\"\n{guests}")
}

/// So few frames are on their way that the TAP never drops one.
#[test]
#[ignore = "needs root and namespaces"]
fn frames_of_all_lengths_come_by_a_tap_to_their_guests() {
    let network = Namespace::new().unwrap();
    let daemon =
        Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, Some(&network)).unwrap();
    let socket = |number| daemon.dir().join(format!("{number}.sock")).display().to_string();
    let sockets: Vec<String> = (0..GUESTS).map(socket).collect();
    let line = format!(
        "--ports {} --from rm0 --mix --window 36 --verify full --warm-up 0.1 --duration 0.3",
        sockets.join(",")
    );
    let args = load::Args::from_words(line.split_whitespace()).unwrap();
    let report = network.open(|| Ok(load::run(&args))).unwrap().unwrap();
    assert!(report.is_right(), "{report}");
    assert_eq!(report.directions.len(), GUESTS);
    for direction in &report.directions {
        let arrived = direction.received > 0 && direction.lost == 0;
        assert!(arrived, "{report}\n{}", daemon.log());
    }
    let stats = daemon.stats().unwrap();
    let uplink = stats.ports.iter().find(|port| port.name == "uplink").unwrap();
    let sent: u64 = report.directions.iter().map(|direction| direction.sent).sum();
    assert!(uplink.total.tx_frames >= sent, "the frames came by another port: {stats:#?}");
}
