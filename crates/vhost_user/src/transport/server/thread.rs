//! The thread of a server: accepts or connects, serves a session, and backs off.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use network::control_budget::ControlBudget;
use ring::Recovery;
use rustix::event::PollFlags;
use unix_socket::{Listener, SocketType, connect_to};

use super::Port;
use super::end::End;
use super::endpoint::Endpoint;
use super::hand_over_request::HandOverRequest;
use super::signals::{Signals, Wakeup};
use super::subject::{Subject, log};
use crate::transport::connection::{Connection, Incoming, Message};
use crate::transport::device::Device;
use crate::transport::feature::Features;
use crate::transport::session::Session;
use crate::transport::status::{PortStatus, SharedStatus, State, unclear_reason};

/// Shortest pause before a connection is tried again, or accepted again after a violation.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Time for which a front-end must be quiet before the vrings that it enabled are logged.
const QUIET: Duration = Duration::from_millis(100);

mod hand_over;

/// A front-end that is being served.
pub(super) struct Conversation<P: Port> {
    connection: Connection,
    session: Session<P::Device>,
}

/// A server's thread.
pub(super) struct ServerThread<P: Port> {
    subject: Subject,
    endpoint: Endpoint,
    port: P,
    status: SharedStatus,
    signals: Signals,
    pause: Duration,
    requests: Receiver<HandOverRequest>,
    /// The budget for the work that front-ends cause on the workers. The budget belongs to the
    /// port, not to a connection.
    budget: ControlBudget,
}

/// The state of a connection that was logged last.
#[derive(Default)]
struct Logged {
    features: Features,
    active_vrings: Vec<usize>,
}

impl<P: Port> ServerThread<P> {
    pub(super) fn new(
        subject: Subject,
        endpoint: Endpoint,
        port: P,
        status: SharedStatus,
        signals: Signals,
        requests: Receiver<HandOverRequest>,
    ) -> Self {
        let budget = ControlBudget::default();
        ServerThread { subject, endpoint, port, status, signals, pause: PAUSE, requests, budget }
    }

    /// Serves front-ends, first the one that another process has served until now.
    pub(super) fn run(mut self, mut first: Option<Conversation<P>>) {
        if let Endpoint::Listener(listener) = &self.endpoint {
            log!(info, self.subject, socket = %listener.path().display(), "listening");
        }
        loop {
            let conversation = first.take().or_else(|| self.next().map(|it| self.begin(it)));
            let Some(conversation) = conversation else { break };
            let began = Instant::now();
            let end = self.serve(conversation);
            self.record(&end);
            if matches!(end, End::Removed) || !self.back_off(&end, began) {
                break;
            }
        }
        self.port.remove();
        self.status.update(|status| status.state = State::Removed);
        log!(info, self.subject, "removed");
    }

    /// The next front-end. `None`: the port is to end.
    fn next(&mut self) -> Option<OwnedFd> {
        match &self.endpoint {
            Endpoint::Listener(_) => self.accept(),
            Endpoint::Path(_) => self.connect(),
        }
    }

    fn accept(&mut self) -> Option<OwnedFd> {
        self.status.update(|status| status.state = State::Listening);
        loop {
            let Endpoint::Listener(listener) = &self.endpoint else { return None };
            match self.signals.wait_for(Some((listener, PollFlags::IN)), None, None) {
                Wakeup::Stop => return None,
                Wakeup::Fault | Wakeup::ConfigChange | Wakeup::Timeout => continue,
                Wakeup::HandOver => {
                    // Without a session, the hand-over ends no session.
                    let _ = self.hand_over(None);
                    continue;
                }
                Wakeup::Ready => {}
            }
            match listener.accept() {
                Ok(Some(socket)) => return Some(socket),
                Ok(None) => {}
                Err(error) => {
                    log!(warn, self.subject, reason = %error, "cannot accept a front-end");
                    if !self.sleep(LONGEST_PAUSE) {
                        return None;
                    }
                }
            }
        }
    }

    fn connect(&mut self) -> Option<OwnedFd> {
        self.status.update(|status| status.state = State::Connecting);
        let mut is_logged = false;
        loop {
            let Endpoint::Path(path) = &self.endpoint else { return None };
            match connect_to(path, SocketType::STREAM) {
                Ok(socket) => return Some(socket),
                Err(error) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        log!(info, self.subject, reason = %error, "cannot connect yet; trying again until it succeeds");
                    }
                    self.status.update(|status| status.reason = Some(error.to_string()));
                }
            }
            if !self.sleep(LONGEST_PAUSE) {
                return None;
            }
        }
    }

    /// Begins to serve a front-end that has connected.
    fn begin(&mut self, socket: OwnedFd) -> Conversation<P> {
        let connection = Connection::new(socket);
        let peer = connection.peer();
        log!(info, self.subject, peer, "connected");
        self.status.update(|status| {
            status.state = State::Connected;
            status.peer = peer;
            status.connections += 1;
        });
        // A fault of an earlier connection does not concern this one.
        self.signals.faults.take();
        let account = self.port.account();
        account.begin_session();
        Conversation { connection, session: Session::new(self.port.device(), account) }
    }

    /// Serves one front-end until it goes, breaks the protocol, or the port ends.
    fn serve(&mut self, Conversation { mut connection, mut session }: Conversation<P>) -> End {
        let end = match self.converse(&mut connection, &mut session) {
            Ok(never) => match never {},
            Err(end) => end,
        };
        let fault = if let End::Fault(fault) = &end { Some(fault.cost()) } else { None };
        let cost = session.close(fault.is_some()) + fault.unwrap_or_default();
        self.budget.charge(cost, Instant::now());
        end
    }

    fn converse(
        &mut self,
        connection: &mut Connection,
        session: &mut Session<P::Device>,
    ) -> Result<Infallible, End> {
        let mut logged = Logged { features: session.features(), ..Logged::default() };
        loop {
            self.await_budget()?;
            let wanted = if connection.is_clogged() { PollFlags::OUT } else { PollFlags::IN };
            let changed = session.active_vrings() != logged.active_vrings;
            let timeout = changed.then_some(QUIET);
            let changes = self.port.config_changes();
            match self.signals.wait_for(Some((&*connection, wanted)), changes, timeout) {
                Wakeup::Stop => return Err(End::Removed),
                Wakeup::Fault => match self.signals.faults.take() {
                    Some(fault) => return Err(End::Fault(fault)),
                    None => continue,
                },
                Wakeup::ConfigChange => {
                    changes.inspect(|event| event.clear());
                    session.announce_config_change();
                }
                Wakeup::HandOver => self.hand_over(Some((&*connection, session)))?,
                Wakeup::Timeout => self.log_vrings(session, &mut logged),
                Wakeup::Ready if connection.is_clogged() => connection.drain()?,
                Wakeup::Ready => match connection.read()? {
                    Incoming::Nothing => {}
                    Incoming::End => return Err(End::Disconnected),
                    Incoming::Message(message) => {
                        self.answer(message, connection, session, &mut logged)?
                    }
                },
            }
        }
    }

    /// Reads no message while the port has overdrawn its budget.
    fn await_budget(&mut self) -> Result<(), End> {
        let Some(until) = self.budget.overdrawn_until(Instant::now()) else { return Ok(()) };
        self.status.update(|status| status.control_delayed += 1);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.signals.wait(None::<(&Listener, _)>, Some(left)) {
                Wakeup::Stop => return Err(End::Removed),
                Wakeup::Fault => {
                    self.signals.faults.take().map_or(Ok(()), |fault| Err(End::Fault(fault)))?
                }
                Wakeup::Timeout => return Ok(()),
                Wakeup::Ready | Wakeup::ConfigChange | Wakeup::HandOver => {}
            }
        }
    }

    fn answer(
        &mut self,
        message: Message,
        connection: &mut Connection,
        session: &mut Session<P::Device>,
        logged: &mut Logged,
    ) -> Result<(), End> {
        let answer = session.answer(&message.header, &message.payload, message.fds);
        self.budget.charge(answer.cost, Instant::now());
        self.log_features(session, logged);
        self.record_session(session);
        match (answer.reply, answer.file) {
            (Some(reply), Some(file)) => connection.send_with_file(&reply, file)?,
            (Some(reply), None) => connection.send(&reply)?,
            (None, _) => {}
        }
        match answer.error {
            Some(error) if answer.closes => Err(error.into()),
            Some(error) => {
                log!(warn, self.subject, reason = %error, "declined a request");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records the status of the session.
    fn record_session(&self, session: &mut Session<P::Device>) {
        self.record_recovered(session);
        self.status.update(|status| {
            status.features = session.features();
            status.active_vrings = session.active_vrings();
            status.unclear_vrings = session.unclear_vrings();
        });
    }

    fn log_features(&self, session: &Session<P::Device>, logged: &mut Logged) {
        let features = session.features();
        if std::mem::replace(&mut logged.features, features) != features {
            let names = session.device().feature_names(features).join(" ");
            log!(info, self.subject, features = names, "features negotiated");
        }
    }

    /// Records vrings that were not started at the front-end's position.
    fn record_recovered(&self, session: &mut Session<P::Device>) {
        for (vring, recovery) in session.take_recovered() {
            match recovery {
                Recovery::AsTold => {}
                Recovery::Moved { told, found } => {
                    log!(
                        info,
                        self.subject,
                        vring,
                        told,
                        found,
                        "the ring continues from the position found in it"
                    );
                    self.status.update(|status| status.recovered += 1);
                }
                Recovery::Unclear => {
                    log!(
                        warn,
                        self.subject,
                        reason = unclear_reason(&[vring]),
                        "the ring's position is unknown"
                    );
                    self.status.update(|status| status.unclear += 1);
                }
            }
        }
    }

    fn log_vrings(&self, session: &Session<P::Device>, logged: &mut Logged) {
        logged.active_vrings = session.active_vrings();
        let vrings = session.device().describe_vrings(&logged.active_vrings);
        log!(info, self.subject, vrings, "vrings enabled");
    }

    /// Records how a connection ended.
    fn record(&mut self, end: &End) {
        self.signals.faults.take();
        self.status.update(|status| {
            *status = PortStatus {
                connections: status.connections,
                unclear: status.unclear,
                recovered: status.recovered,
                control_delayed: status.control_delayed,
                violations: status.violations + u64::from(end.is_violation()),
                reason: match end.is_refusal() {
                    true => Some(end.to_string()),
                    false => status.reason.take(),
                },
                ..PortStatus::default()
            };
        });
        match end.is_refusal() {
            true => log!(warn, self.subject, reason = %end, "stopped"),
            false => log!(info, self.subject, reason = %end, "disconnected"),
        }
    }

    /// Pauses after a connection. The pause grows with recent violations of the protocol. It is at
    /// least long enough that front-ends which only connect and disconnect cost little. False: the
    /// port is to end.
    fn back_off(&mut self, end: &End, began: Instant) -> bool {
        if began.elapsed() >= LONGEST_PAUSE {
            self.pause = PAUSE;
        }
        let expected = matches!(self.endpoint, Endpoint::Listener(_)) && !end.is_violation();
        self.sleep(if expected { PAUSE } else { LONGEST_PAUSE })
    }

    /// Pauses, each time a little longer, up to `longest`. False: the port is to end.
    fn sleep(&mut self, longest: Duration) -> bool {
        let until = Instant::now() + self.pause.min(longest);
        self.pause = (self.pause * 2).min(longest);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.signals.wait_for(None::<(&Listener, _)>, None, Some(left)) {
                Wakeup::Stop => return false,
                Wakeup::Timeout => return true,
                Wakeup::Ready | Wakeup::ConfigChange => {}
                // Without a session, the hand-over ends no session.
                Wakeup::HandOver => drop(self.hand_over(None)),
                Wakeup::Fault => drop(self.signals.faults.take()),
            }
        }
    }
}
