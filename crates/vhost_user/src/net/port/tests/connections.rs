//! Front-ends and ports that come and go.

use super::*;

#[test]
fn a_front_end_that_goes_and_comes_back_is_served_again() {
    let lab = Lab::new();
    let (a, _b) = (lab.device("a"), lab.device("b"));
    let mut stays = guest(&lab, "b");
    for round in 1..4 {
        let mut goes = guest(&lab, "a");
        goes.reaches(&mut stays, round);
        stays.reaches(&mut goes, 100);
        let status = a.status();
        assert_eq!((status.state, status.connections), (State::Connected, round.into()));
        assert_eq!(status.peer, Some(std::process::id() as i32));
        assert_eq!(active(&status), ActiveVrings { tx: 1, rx: 1 });
        drop(goes);
        eventually("the disconnect is seen", || a.status().state == State::Listening);
        assert_eq!((active(&a.status()), a.status().violations), (ActiveVrings::default(), 0));
    }
}

#[test]
fn a_client_keeps_trying_and_comes_back() {
    let lab = Lab::new();
    let (device, _b) = (lab.start("a", Mode::Client).unwrap(), lab.device("b"));
    let mut stays = guest(&lab, "b");
    eventually("it says why", || device.status().reason.is_some());
    assert_eq!(device.status().state, State::Connecting);
    for _ in 0..2 {
        let listener = UnixListener::bind(lab.path("a")).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut goes = Plugged::<SplitDriver>::on(stream, FEATURES);
        goes.reaches(&mut stays, 1);
        drop((listener, goes));
        std::fs::remove_file(lab.path("a")).unwrap();
        eventually("the disconnect is seen", || device.status().state == State::Connecting);
    }
    assert_eq!(device.status().connections, 2);
}

#[test]
fn a_port_ends_whatever_its_front_end_is_doing() {
    let lab = Lab::new();
    let half: fn(UnixStream) -> UnixStream = |mut stream| {
        stream.write_all(&[2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1]).unwrap();
        stream
    };
    let deaf: fn(UnixStream) -> UnixStream = |mut stream| {
        // Questions until the answers, which nobody reads, fill the socket.
        stream.set_nonblocking(true).unwrap();
        while stream.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).is_ok() {}
        stream
    };
    for rude in [half, deaf, |stream| stream] {
        let device = lab.device("a");
        let _stream = rude(lab.connect("a"));
        eventually("connected", || device.status().state == State::Connected);
        assert!(lab.path("a").exists());
        device.stop();
        assert!(!lab.path("a").exists());
    }
}

#[test]
fn a_port_that_ends_leaves_the_others_alone() {
    let lab = Lab::new();
    let (_a, _b, c) = (lab.device("a"), lab.device("b"), lab.device("c"));
    let (mut a, mut b, _third) = (guest(&lab, "a"), guest(&lab, "b"), guest(&lab, "c"));
    a.reaches(&mut b, 1);
    c.stop();
    a.reaches(&mut b, 2);
    b.reaches(&mut a, 3);
}

#[test]
fn what_cannot_start_says_why_and_leaves_nothing() {
    let lab = Lab::new();
    let _first = lab.device("a");
    assert!(matches!(lab.start("a", Mode::Server), Err(StartError::Socket(SocketError::InUse(_)))));
    let config = |queues, rule| PortConfig { rule, ..PortConfig::new(&lab.path("x"), queues) };
    let start = |config| Port::start(Arc::clone(&lab.fabric), config);
    assert!(matches!(start(config(0, PortRule::default())), Err(StartError::Queues(0))));
    assert!(matches!(start(config(129, PortRule::default())), Err(StartError::Queues(129))));
    let impossible = PortRule { vlan: switch::Vlan::Access(4095), mac: None };
    assert!(matches!(start(config(1, impossible)), Err(StartError::Fabric(_))));
    assert!(!lab.path("x").exists());
}
