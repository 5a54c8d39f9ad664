//! HTTP/1.1 as far as a scraper needs it: one request a connection, `GET` or `HEAD`.
//!
//! A client cannot hold the daemon up: the length of a request, its time and the number of
//! connections are limited. A page in a browser cannot read metrics by a name of its own that leads
//! to this host (DNS rebinding): requests over TCP must name an address or `localhost`.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dashboard;
use super::text::{CONTENT_TYPE, text};
use sandbox::Role;

use crate::acceptor::Connections;
use crate::api::{Reply, Request, Stats};
use crate::events::RecentEvents;
use crate::line::{self, remaining};
use crate::server::Handler;

/// Longest request, headers included, in bytes.
const LONGEST_REQUEST: usize = 8 << 10;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// The time that a client has for its request, and again for reading the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The text of the page at `/`.
const INDEX: &str = "Ringmain. Metrics for Prometheus are at /metrics.\n";
const INDEX_WITH_DASHBOARD: &str =
    "Ringmain. Metrics for Prometheus are at /metrics, a dashboard is at /dashboard.\n";

/// Headers of all answers. A browser that shows one loads nothing from elsewhere, runs no script
/// but those of the dashboard, and lets no other page embed or read it.
const HEADERS: &str = "Cache-Control: no-store\r\n\
    X-Content-Type-Options: nosniff\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n\
    Connection: close\r\n";

/// Clients of the metrics' listener.
pub struct HttpClients {
    /// The source of the counters.
    pub handler: Arc<dyn Handler>,
    /// Whether the header `Host` must name an address or `localhost`.
    pub names_are_checked: bool,
    /// The events that a dashboard shows; `None`: there is no dashboard.
    pub events: Option<Arc<RecentEvents>>,
}

impl Connections for HttpClients {
    const SOCKET: &'static str = "metrics";
    const THREADS: [&'static str; 2] = ["rm-metrics", "rm-metrics-peer"];
    const ROLES: Option<[Role; 2]> = Some([Role::Acceptor, Role::Task]);
    const MOST: usize = 8;

    fn serve(&self, stream: &mut UnixStream) {
        // A client that is gone or too slow gets no answer.
        let Ok(head) = read_head(stream) else { return };
        let _ = line::write(stream, &self.response(&head).bytes(), Instant::now() + TIMEOUT);
    }

    fn turn_away(&self, stream: &mut UnixStream) {
        let response = Response::error("503 Service Unavailable", "too many connections");
        let by = Instant::now() + Duration::from_millis(10);
        let _ = line::write(stream, &response.bytes(), by);
    }
}

impl HttpClients {
    fn response(&self, head: &[u8]) -> Response {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => {
                let status = "431 Request Header Fields Too Large";
                return Response::error(status, "the request is too long");
            }
            Err(error) => return Response::error("400 Bad Request", &error.to_string()),
        }
        if self.names_are_checked && !names_this_host(request.headers) {
            let reason = "the header Host must name an address or localhost";
            return Response::error("403 Forbidden", reason);
        }
        let method = request.method.unwrap_or_default();
        let without_body = method == "HEAD";
        if !without_body && method != "GET" {
            return Response::error("405 Method Not Allowed", "only GET and HEAD are allowed");
        }
        let path = request.path.unwrap_or_default();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        Response { without_body, ..self.resource(path) }
    }

    fn resource(&self, path: &str) -> Response {
        match (path, &self.events) {
            ("/metrics", _) => self.stats(CONTENT_TYPE, |stats| Ok(text(stats))),
            ("/", None) => Response::ok(PLAIN, INDEX),
            ("/", Some(_)) => Response::ok(PLAIN, INDEX_WITH_DASHBOARD),
            (dashboard::STATE, Some(events)) => {
                self.stats("application/json", |stats| dashboard::state(stats, events.list()))
            }
            (path, events) => match dashboard::file(path).filter(|_| events.is_some()) {
                Some((content_type, text)) => Response::ok(content_type, text),
                None => Response::error("404 Not Found", "metrics are at /metrics"),
            },
        }
    }

    /// The present counters, written by `write`.
    fn stats(
        &self,
        content_type: &'static str,
        write: impl FnOnce(&Stats) -> Result<String, String>,
    ) -> Response {
        let written = self.handler.handle(Request::Stats).and_then(|reply| match reply {
            Reply::Stats(stats) => write(&stats),
            _ => Err("no counters".to_owned()),
        });
        match written {
            Ok(body) => Response::ok(content_type, body),
            Err(error) => Response::error("500 Internal Server Error", &error),
        }
    }
}

/// Whether a request names this host by an address or as `localhost`.
fn names_this_host(headers: &[httparse::Header<'_>]) -> bool {
    let host = headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
    let host = host.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map_or(v6, |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Reads until the empty line behind the headers, or as much as a request may have.
fn read_head(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let by = Instant::now() + TIMEOUT;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < LONGEST_REQUEST {
        stream.set_read_timeout(Some(remaining(by)?))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => head.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(head)
}

/// The content type of text for people.
const PLAIN: &str = "text/plain; charset=utf-8";

/// An answer.
struct Response {
    status: &'static str,
    content_type: &'static str,
    body: Cow<'static, str>,
    /// Only the headers are wanted.
    without_body: bool,
}

impl Response {
    fn ok(content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Response {
        Response { status: "200 OK", content_type, body: body.into(), without_body: false }
    }

    fn error(status: &'static str, reason: &str) -> Response {
        Response { status, ..Response::ok(PLAIN, format!("{reason}\n")) }
    }

    fn bytes(&self) -> Vec<u8> {
        let Response { status, content_type, body, without_body } = self;
        let sent = if *without_body { "" } else { &**body };
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             {HEADERS}{allow}\r\n{sent}",
            body.len()
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests;
