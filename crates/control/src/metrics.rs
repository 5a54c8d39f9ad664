//! Metrics for Prometheus, and a dashboard, at an HTTP listener of the daemon's own.
//!
//! The listener is off unless the configuration names it. Names of metrics are an interface:
//! `docs/metrics.md` lists them, and a test compares the two.

mod dashboard;
mod disk_families;
mod families;
mod family;
mod histogram;
mod http;
mod labels;
mod text;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::acceptor::Acceptor;
use crate::config::{MetricsListen, MetricsSpec};
use crate::events::RecentEvents;
use crate::hand_over::{Adopted, Shared};
use crate::server::Handler;
use crate::socket_file::{Place, SocketError, SocketFile};

use http::HttpClients;

const KEY: &str = "metrics.listen";

/// A listener that was opened before the process entered the sandbox, which forbids opening TCP
/// sockets.
#[derive(Debug, Default)]
pub struct OpenListener {
    tcp: Option<TcpListener>,
    path: Option<(SocketFile, OwnedFd)>,
    /// Whether another process will hand over its own listener.
    is_to_come: bool,
    adopted: Option<Adopted>,
    events: Arc<RecentEvents>,
}

impl OpenListener {
    /// Listens at the TCP address of a configuration, if it names one. A socket of a path is
    /// opened later, by the user that the daemon has become. A dashboard will show `events`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(
        spec: Option<&MetricsSpec>,
        events: Arc<RecentEvents>,
    ) -> Result<OpenListener, SocketError> {
        let tcp = match spec.map(|spec| &spec.listen) {
            Some(MetricsListen::Tcp(address)) => Some(listen_at(*address)?),
            Some(MetricsListen::Path(_)) | None => None,
        };
        Ok(OpenListener { tcp, events, ..OpenListener::default() })
    }

    /// A value without a listener: another process will hand its own over.
    pub fn to_come(events: Arc<RecentEvents>) -> OpenListener {
        OpenListener { is_to_come: true, events, ..OpenListener::default() }
    }

    /// Listens at the path of a configuration, if it names one and no listener is to come, before
    /// the listener is started: a process that takes over must not fail once it has.
    ///
    /// # Errors
    /// When somebody else listens there, or the system refuses.
    pub(crate) fn open_path(&mut self, spec: Option<&MetricsSpec>) -> Result<(), SocketError> {
        if let Some((spec, MetricsListen::Path(path))) = spec.map(|spec| (spec, &spec.listen))
            && !self.is_to_come
        {
            let place = Place { key: KEY, path };
            self.path = Some(SocketFile::create(place, spec.permissions)?);
        }
        Ok(())
    }

    /// The listener of another process, which is used if one was to come.
    pub(crate) fn adopt(&mut self, listener: Adopted) {
        self.adopted = self.is_to_come.then_some(listener);
    }
}

fn listen_at(address: SocketAddr) -> Result<TcpListener, SocketError> {
    let listen = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|error| SocketError::Io { key: KEY, place: address.to_string(), error })
}

/// The listener in service. Dropping it closes all connections, and removes the socket's file.
pub struct MetricsServer {
    // The order of drops matters: no client is served at a removed socket.
    acceptor: Acceptor,
    file: Option<SocketFile>,
}

impl MetricsServer {
    /// Serves metrics as a configuration says, at `open` where that is a TCP address.
    ///
    /// # Errors
    /// When somebody else listens there, or the system refuses.
    pub fn start(
        spec: &MetricsSpec,
        open: OpenListener,
        handler: Arc<dyn Handler>,
    ) -> Result<MetricsServer, SocketError> {
        let (file, listener, place) = match (&spec.listen, open.adopted) {
            (MetricsListen::Path(path), Some(Adopted { socket, file })) => {
                (Some(SocketFile::adopt(path, file)), socket, spec.place())
            }
            (MetricsListen::Tcp(_), Some(Adopted { socket, .. })) => (None, socket, spec.place()),
            (MetricsListen::Path(path), None) => {
                let place = Place { key: KEY, path };
                let create = || SocketFile::create(place, spec.permissions);
                let (file, listener) = open.path.map_or_else(create, Ok)?;
                (Some(file), listener, spec.place())
            }
            (MetricsListen::Tcp(address), None) => {
                let listener = open.tcp.map_or_else(|| listen_at(*address), Ok)?;
                (None, OwnedFd::from(listener), spec.place())
            }
        };
        let events = spec.dashboard.then_some(open.events);
        let clients = HttpClients { handler, names_are_checked: file.is_none(), events };
        let acceptor = Acceptor::start(listener, clients).map_err(|error| SocketError::Io {
            key: KEY,
            place,
            error,
        })?;
        Ok(MetricsServer { acceptor, file })
    }

    /// The listening socket, for a process that takes over.
    pub(crate) fn shared(&self) -> Shared {
        let file = self.file.as_ref().and_then(SocketFile::identity);
        Shared { socket: Arc::clone(self.acceptor.listener()), file }
    }
}
