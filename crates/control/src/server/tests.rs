use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;
use crate::client::{Client, ClientError};

/// A handler with one port.
struct One;

impl Handler for One {
    fn handle(&self, request: Request) -> Result<Reply, String> {
        match request {
            Request::PortRemove { name } if name == "one" => Ok(Reply::Done),
            Request::PortRemove { name } => Err(format!("there is no port {name:?}")),
            _ => Ok(Reply::Macs(Vec::new())),
        }
    }

    fn capture(&self, _: CaptureRequest) -> Result<CaptureSession, String> {
        Err("no ports".to_owned())
    }
}

struct Site {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

/// A socket path two directories below an empty one.
fn place() -> Site {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/ringmain/control.sock");
    Site { _directory: directory, path }
}

fn start(place: &Site) -> Server {
    Server::start(&place.path, ControlAccess::default(), Arc::new(One)).unwrap()
}

fn remove(name: &str) -> Request {
    Request::PortRemove { name: name.to_owned() }
}

/// Sends raw bytes on a connection of its own and reads to the end.
fn raw(place: &Site, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(&place.path).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_client_gets_replies_and_errors() {
    let place = place();
    let server = start(&place);
    let client = Client::new(&place.path);
    assert_eq!(client.ask(&remove("one")).unwrap(), Reply::Done);
    assert_eq!(client.ask(&Request::Mac).unwrap(), Reply::Macs(vec![]));
    let error = client.ask(&remove("two")).unwrap_err();
    assert!(
        matches!(&error, ClientError::Refused(text) if text == "there is no port \"two\""),
        "{error}"
    );
    drop(server);
    assert!(!place.path.exists());
    assert!(matches!(client.ask(&Request::Mac), Err(ClientError::NoDaemon(_))));
}

#[test]
fn the_socket_is_private() {
    let place = place();
    let _server = start(&place);
    assert_eq!(fs::metadata(&place.path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let place = place();
    fs::create_dir_all(place.path.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&place.path).unwrap());
    assert!(place.path.exists());

    let first = start(&place);
    let second = Server::start(&place.path, ControlAccess::default(), Arc::new(One)).err().unwrap();
    assert!(matches!(second, SocketError::Taken { .. }), "{second}");
    assert_eq!(Client::new(&place.path).ask(&remove("one")).unwrap(), Reply::Done);
    drop(first);
    start(&place);
}

#[test]
fn only_sockets_are_removed() {
    let place = place();
    fs::create_dir_all(place.path.parent().unwrap()).unwrap();
    fs::write(&place.path, "precious").unwrap();
    let error = Server::start(&place.path, ControlAccess::default(), Arc::new(One)).err().unwrap();
    assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read_to_string(&place.path).unwrap(), "precious");
}

#[test]
fn the_socket_of_another_daemon_is_not_removed() {
    let place = place();
    let server = start(&place);
    fs::remove_file(&place.path).unwrap();
    let _other = UnixListener::bind(&place.path).unwrap();
    drop(server);
    assert!(place.path.exists());
}

#[test]
fn several_lines_on_one_connection() {
    let place = place();
    let _server = start(&place);
    let line = r#"{"version":2,"do":"port.remove","name":"one"}"#;
    let answers = raw(&place, format!("{line}\n{line}\n").as_bytes());
    assert_eq!(answers, "{\"version\":2,\"ok\":\"done\"}\n".repeat(2));
}

#[test]
fn a_malformed_request_is_answered_with_what_is_wrong() {
    let place = place();
    let _server = start(&place);
    let cases: [(&[u8], &str); 7] = [
        (b"hello\n", "the request is not JSON"),
        (b"[]\n", "the request is not a JSON object"),
        (b"{\"do\":\"mac\"}\n", "the request has no version"),
        (
            b"{\"version\":1,\"do\":\"mac\"}\n",
            "version 1 of the protocol is not supported, only version 2",
        ),
        (b"{\"version\":2,\"do\":\"fly\"}\n", "the request is not understood"),
        (
            b"{\"version\":2,\"do\":\"port.show\",\"name\":\"a\",\"x\":1}\n",
            "the request is not understood",
        ),
        (b"\xff\xfe\n", "the request is not JSON"),
    ];
    for (bytes, want) in cases {
        let answer = raw(&place, bytes);
        assert!(answer.contains(want), "{answer}");
    }
    let deep = [b"[".repeat(60_000), b"\n".to_vec()].concat();
    assert!(raw(&place, &deep).contains("not JSON"), "depth is bounded");
}

#[test]
fn a_request_without_end_is_cut_off() {
    let place = place();
    let _server = start(&place);
    let mut stream = UnixStream::connect(&place.path).unwrap();
    let mut sent = 0;
    while sent < 10 << 20 && stream.write_all(&[b'x'; 4096]).is_ok() {
        sent += 4096;
    }
    assert!(sent < 10 << 20, "it took everything");
}

#[test]
fn silent_connections_are_limited_and_do_not_delay_the_end() {
    let place = place();
    let server = start(&place);
    let silent: Vec<UnixStream> =
        (0..MAX_CONNECTIONS).map(|_| UnixStream::connect(&place.path).unwrap()).collect();
    let client = Client::new(&place.path);
    let error = client.ask(&Request::Mac).unwrap_err();
    assert!(!matches!(error, ClientError::NoDaemon(_)), "{error}");
    drop(silent);
    // The threads of closed connections end on their own, soon.
    while client.ask(&Request::Mac).is_err() {
        std::thread::yield_now();
    }
    let _silent = UnixStream::connect(&place.path).unwrap();
    drop(server);
}
