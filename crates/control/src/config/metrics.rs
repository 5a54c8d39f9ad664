//! The `[metrics]` table: where metrics are served.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use unix_socket::Permissions;

use super::access::{self, SocketGroup, SocketMode, SocketOwner};
use super::port_table;
use super::source::{Problems, VALUE};
use super::value::{FromText, TableName, Text};

/// The place where metrics are served, and the users that may read them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricsSpec {
    /// The listener.
    pub listen: MetricsListen,
    /// The users that may use a socket of a path; by default, the daemon's user.
    pub permissions: Permissions,
    /// Whether a dashboard is also served.
    pub dashboard: bool,
}

impl MetricsSpec {
    /// The address or the path.
    pub fn place(&self) -> String {
        match &self.listen {
            MetricsListen::Path(path) => path.display().to_string(),
            MetricsListen::Tcp(address) => address.to_string(),
        }
    }

    /// The path of the socket, if it is one.
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.listen {
            MetricsListen::Path(path) => Some(path),
            MetricsListen::Tcp(_) => None,
        }
    }
}

/// The listener of metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsListen {
    /// A UNIX socket.
    Path(PathBuf),
    /// A TCP port of this host, at a loopback address.
    Tcp(SocketAddr),
}

impl FromText for MetricsListen {
    fn right() -> String {
        r#"a loopback address with a port, like "127.0.0.1:9464", or the path of a socket"#
            .to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return port_table::socket_path(text).map(MetricsListen::Path);
        }
        let address: SocketAddr =
            text.parse().map_err(|_| format!("{VALUE} is no address; give {}", Self::right()))?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{VALUE} can be reached from other hosts, and there is neither a password nor \
                 encryption; give {}, and put a proxy before it",
                Self::right()
            ));
        }
        Ok(MetricsListen::Tcp(address))
    }
}

/// The table as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MetricsTable {
    listen: Option<Spanned<Text<MetricsListen>>>,
    mode: Option<Spanned<Text<SocketMode>>>,
    owner: Option<Spanned<Text<SocketOwner>>>,
    group: Option<Spanned<Text<SocketGroup>>>,
    dashboard: Option<bool>,
}

impl TableName for MetricsTable {
    const EXPECTED: &'static str = "a table; write [metrics]";
}

/// Reads the table, which begins at `at`. `sockets` are those of other objects, with the objects'
/// names.
pub(super) fn read(
    table: MetricsTable,
    at: usize,
    sockets: &[(&Path, String)],
    problems: &mut Problems<'_>,
) -> Option<MetricsSpec> {
    let MetricsTable { listen, mode, owner, group, dashboard } = table;
    let Some(listen) = listen else {
        problems.add_missing("metrics", "listen", at, &MetricsListen::right());
        return None;
    };
    let span = listen.span();
    let Text(listen) = listen.into_inner();
    match &listen {
        MetricsListen::Path(path) => {
            if let Some((_, other)) = sockets.iter().find(|(taken, _)| taken == path) {
                let problem = format!("{VALUE} belongs to {other} already; give another path");
                problems.add("metrics", "listen", &span, problem);
            }
        }
        MetricsListen::Tcp(_) => {
            let given = [
                ("mode", mode.as_ref().map(Spanned::span)),
                ("owner", owner.as_ref().map(Spanned::span)),
                ("group", group.as_ref().map(Spanned::span)),
            ];
            for (key, span) in given.into_iter().filter_map(|(key, span)| Some((key, span?))) {
                let problem = "this is for the path of a socket: every user of this host can reach \
                               a TCP port; leave it out";
                problems.add("metrics", key, &span, problem);
            }
        }
    }
    let permissions = access::permissions(
        mode.map(|mode| mode.into_inner().0),
        owner.map(|owner| owner.into_inner().0),
        group.map(|group| group.into_inner().0),
    );
    Some(MetricsSpec { listen, permissions, dashboard: dashboard.unwrap_or(false) })
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;
    use crate::config::{Config, Host};

    fn parse(text: &str) -> Result<Option<MetricsSpec>, String> {
        let config = Config::parse("f", text, &Host { cpus: vec![0] });
        config.map(|config| config.metrics).map_err(|errors| errors.to_string())
    }

    #[test]
    fn metrics_are_off_unless_a_listener_is_named() {
        assert_eq!(parse(""), Ok(None));
        let tcp = |address: &str| MetricsSpec {
            listen: MetricsListen::Tcp(address.parse().unwrap()),
            permissions: Permissions::default(),
            dashboard: false,
        };
        for address in ["127.0.0.1:9464", "127.3.2.1:1", "[::1]:9464"] {
            let text = format!("[metrics]\nlisten = {address:?}\n");
            assert_eq!(parse(&text), Ok(Some(tcp(address))));
        }
        let path = parse("[metrics]\nlisten = \"/run/m.sock\"\nmode = \"660\"\n").unwrap().unwrap();
        assert_eq!(path.path(), Some(&PathBuf::from("/run/m.sock")));
        let text = "[metrics]\nlisten = \"127.0.0.1:1\"\ndashboard = true\n";
        assert!(parse(text).unwrap().unwrap().dashboard);
        assert_eq!(path.permissions.mode, Some(Mode::from_bits_truncate(0o660)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        let right = MetricsListen::right();
        let cases = [
            ("", format!("f:1: metrics.listen: missing; give {right}")),
            (
                "listen = 9464",
                format!("f:2: metrics.listen: 9464 is not a string; give {right}"),
            ),
            (
                "listen = \"localhost\"",
                format!("f:2: metrics.listen: \"localhost\" is no address; give {right}"),
            ),
            (
                "listen = \"0.0.0.0:9464\"",
                format!(
                    "f:2: metrics.listen: \"0.0.0.0:9464\" can be reached from other hosts, and \
                     there is neither a password nor encryption; give {right}, and put a proxy \
                     before it"
                ),
            ),
            (
                "listen = \"/run/ringmain/control.sock\"",
                "f:2: metrics.listen: \"/run/ringmain/control.sock\" belongs to the control socket \
                 already; give another path"
                    .to_owned(),
            ),
        ];
        for (keys, want) in cases {
            assert_eq!(parse(&format!("[metrics]\n{keys}\n")), Err(want));
        }
        let error = parse("[metrics]\nlisten = \"[::1]:1\"\nmode = \"660\"\n").unwrap_err();
        assert!(
            error.starts_with("f:3: metrics.mode: this is for the path of a socket"),
            "{error}"
        );
    }
}
