use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;

use unix_socket::Permissions;

use super::*;
use crate::api::CaptureRequest;
use crate::api::Stats;
use crate::capture::CaptureSession;
use crate::config::{MetricsListen, MetricsSpec};
use crate::metrics::{MetricsServer, OpenListener};

struct Empty;

impl Handler for Empty {
    fn handle(&self, _: Request) -> Result<Reply, String> {
        Ok(Reply::Stats(Box::default()))
    }

    fn capture(&self, _: CaptureRequest) -> Result<CaptureSession, String> {
        Err("no ports".to_owned())
    }
}

fn clients(names_are_checked: bool) -> HttpClients {
    HttpClients { handler: Arc::new(Empty), names_are_checked, events: None }
}

/// The answer's status line, and its body.
fn ask(clients: &HttpClients, request: &str) -> (String, String) {
    parts(&String::from_utf8(clients.response(request.as_bytes()).bytes()).unwrap())
}

fn parts(answer: &str) -> (String, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n\r\n")
}

#[test]
fn a_scraper_gets_metrics_and_everything_else_an_error() {
    let clients = clients(true);
    for path in ["/metrics", "/metrics?name=x"] {
        let (status, body) = ask(&clients, &get(path));
        assert_eq!((&*status, body), ("HTTP/1.1 200 OK", text(&Stats::default())));
    }
    let head = get("/metrics").replace("GET", "HEAD");
    let answer = String::from_utf8(clients.response(head.as_bytes()).bytes()).unwrap();
    let length = format!("Content-Length: {}\r\n", text(&Stats::default()).len());
    assert!(answer.contains(&length) && answer.ends_with("\r\n\r\n"), "{answer}");
    let cases = [
        (get("/"), "200 OK"),
        (get("/secret"), "404 Not Found"),
        (get("/metrics").replace("GET", "POST"), "405 Method Not Allowed"),
        ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
        ("GET /metrics HTTP/1.1\r\n".to_owned(), "431 Request Header Fields Too Large"),
    ];
    for (request, want) in cases {
        assert_eq!(ask(&clients, &request).0, format!("HTTP/1.1 {want}"), "{request}");
    }
}

fn spec(listen: MetricsListen) -> MetricsSpec {
    MetricsSpec { listen, permissions: Permissions::default(), dashboard: false }
}

#[test]
fn a_dashboard_is_there_only_if_it_is_configured() {
    let without = clients(true);
    let events = Arc::new(RecentEvents::default());
    events.add("INFO", "</script><b>ready</b>");
    let with = HttpClients { events: Some(events), ..clients(true) };
    for path in ["/dashboard", "/dashboard/page.js", "/dashboard/page.css", dashboard::STATE] {
        assert_eq!(ask(&without, &get(path)).0, "HTTP/1.1 404 Not Found", "{path}");
        let (status, body) = ask(&with, &get(path));
        assert_eq!((&*status, body.is_empty()), ("HTTP/1.1 200 OK", false), "{path}");
    }
    assert_eq!(ask(&with, &get("/dashboard/../secret")).0, "HTTP/1.1 404 Not Found");
    let rebound = get(dashboard::STATE).replace("127.0.0.1", "evil.example");
    assert_eq!(ask(&with, &rebound).0, "HTTP/1.1 403 Forbidden");
    let answer = with.response(get("/dashboard").as_bytes()).bytes();
    let answer = String::from_utf8(answer).unwrap();
    for header in [
        "Content-Type: text/html; charset=utf-8",
        "Content-Security-Policy: default-src 'none'; script-src 'self';",
        "X-Content-Type-Options: nosniff",
        "Cross-Origin-Resource-Policy: same-origin",
    ] {
        assert!(answer.contains(&format!("\r\n{header}")), "{answer}");
    }
    let state: serde_json::Value =
        serde_json::from_str(&ask(&with, &get(dashboard::STATE)).1).unwrap();
    assert_eq!(state["events"][0]["text"], "</script><b>ready</b>");
    assert_eq!(state["workers"], serde_json::json!([]));
}

#[test]
fn a_request_over_tcp_must_name_this_host() {
    let hosts = [
        ("127.0.0.1", true),
        ("127.0.0.1:9464", true),
        ("[::1]:9464", true),
        ("LocalHost:1", true),
        ("evil.example:9464", false),
        ("127.0.0.1.evil.example", false),
        ("", false),
    ];
    for (host, allowed) in hosts {
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let status = |checked| ask(&clients(checked), &request).0;
        assert_eq!(status(true).contains(" 200 "), allowed, "{host}");
        assert!(status(false).contains(" 200 "), "a UNIX socket cannot be reached so");
    }
    assert!(ask(&clients(true), "GET / HTTP/1.0\r\n\r\n").0.contains(" 403 "));
}

#[test]
fn clients_are_served_over_both_kinds_of_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let served = |listen| {
        let spec = spec(listen);
        let open = OpenListener::open(Some(&spec), Arc::default()).unwrap();
        let port = open.tcp.as_ref().map(|listener| listener.local_addr().unwrap());
        (MetricsServer::start(&spec, open, Arc::new(Empty)).unwrap(), port)
    };
    let (over_unix, _) = served(MetricsListen::Path(path.clone()));
    let (_over_tcp, port) = served(MetricsListen::Tcp("127.0.0.1:0".parse().unwrap()));
    let unix = UnixStream::connect(&path).unwrap();
    let tcp = UnixStream::from(OwnedFd::from(TcpStream::connect(port.unwrap()).unwrap()));
    for mut stream in [unix, tcp] {
        // The request comes slowly, in two pieces.
        let request = get("/metrics");
        let (first, second) = request.split_at(20);
        stream.write_all(first.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(second.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(parts(&answer).0, "HTTP/1.1 200 OK");
    }
    drop(over_unix);
    assert!(!path.exists());
}

#[test]
fn clients_without_end_and_without_manners_leave_room_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let spec = spec(MetricsListen::Path(path.clone()));
    let server = MetricsServer::start(&spec, OpenListener::default(), Arc::new(Empty)).unwrap();
    // A request that is too long is answered.
    let mut long = UnixStream::connect(&path).unwrap();
    let _ = long.write_all(&vec![b'x'; LONGEST_REQUEST]);
    let mut answer = String::new();
    let _ = long.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    // All allowed connections are open, and none sends anything.
    let connect = || UnixStream::connect(&path).unwrap();
    let silent: Vec<_> = (0..HttpClients::MOST).map(|_| connect()).collect();
    let mut one_more = connect();
    let mut answer = String::new();
    one_more.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    silent.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    // Room is available again when they are closed.
    let served = || {
        let mut stream = connect();
        // Fails where the stream was turned away already.
        let _ = stream.write_all(get("/metrics").as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 200 ")
    };
    while !served() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The server's end does not wait for clients.
    let _silent = connect();
    drop(server);
}
