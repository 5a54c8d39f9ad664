//! A guest in a security group.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::{Scene, say};
use crate::wait;

/// Long enough for an answer that comes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough to see that none comes.
const SHORT: Duration = Duration::from_millis(300);

const GROUPS: &str = r#"
security-groups = ["web"]
[[address-group]]
name = "friends"
addresses = ["10.9.0.1"]
[[security-group]]
name = "web"
rules = ["in tcp 8080-8081 from group friends", "out udp 7"]
"#;

/// Listens in the vm, and connects from the peer. Both ends, or `None` if there is no answer.
fn connect(scene: &Scene, port: u16) -> Option<(TcpStream, TcpStream)> {
    let listener = scene.vm.run(move || TcpListener::bind(("10.9.0.2", port)).unwrap());
    let wait = if (8080..=8081).contains(&port) { PATIENCE } else { SHORT };
    let address = format!("10.9.0.2:{port}").parse().unwrap();
    let client = scene.peer.run(move || TcpStream::connect_timeout(&address, wait)).ok()?;
    Some((client, listener.accept().unwrap().0))
}

/// Whether bytes go both ways.
fn exchange((client, server): &mut (TcpStream, TcpStream), wait: Duration) -> bool {
    let say = |from: &mut TcpStream, to: &mut TcpStream| {
        to.set_read_timeout(Some(wait)).unwrap();
        from.write_all(b"hello").unwrap();
        to.read_exact(&mut [0; 5]).is_ok()
    };
    say(client, server) && say(server, client)
}

#[test]
#[ignore = "needs root and namespaces"]
fn a_guest_has_the_connections_that_its_groups_allow() {
    let scene = Scene::new(GROUPS);
    scene.speaks();
    scene.refuses("not_allowed", || say("10.9.0.2:0", "10.9.0.1:9"));
    let mut kept = connect(&scene, 8080).expect("a rule allows it");
    let mut lost = connect(&scene, 8081).expect("a rule allows it");
    assert!(exchange(&mut kept, PATIENCE) && exchange(&mut lost, PATIENCE));
    let before = scene.dropped("vm", "not_allowed");
    assert!(connect(&scene, 8082).is_none());
    assert!(scene.dropped("vm", "not_allowed") > before);
    let test = |port: &str| {
        let destination = format!("10.9.0.2:{port}");
        scene
            .site
            .ask(&["rules", "test", "vm", "in", "tcp", "10.9.0.1:4000", &destination])
            .unwrap()
    };
    assert!(test("8080").starts_with("passes: rule \"in tcp 8080-8081 from group friends\""));
    assert!(test("8082").starts_with("dropped: "));

    // Connections go on that the new rules still allow.
    let file = scene.site.dir.path().join("ringmain.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("8080-8081", "8080")).unwrap();
    let changes = scene.site.ask(&["reload"]).unwrap();
    assert_eq!(changes.trim(), "set security_group web: rules");
    assert!(exchange(&mut kept, PATIENCE));
    assert!(!exchange(&mut lost, SHORT));
    // Nobody is a friend any more.
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("[\"10.9.0.1\"]", "[\"10.9.0.3\"]")).unwrap();
    scene.site.ask(&["reload"]).unwrap();
    assert!(!exchange(&mut kept, SHORT));
    // In no group, everything passes, the segments that were sent again included.
    scene.set(&["port", "set", "vm", "security-groups=none"]);
    let (_, server) = &mut lost;
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    wait(|| connect(&scene, 8082).is_some());
}
