//! The hand-over of a server to another process, from its thread's side in both processes.

use std::sync::mpsc::Sender;

use super::{Conversation, ServerThread};
use crate::transport::connection::Connection;
use crate::transport::saved::{Files, HandOverError, Positions, SavedServer};
use crate::transport::server::Port;
use crate::transport::server::end::End;
use crate::transport::server::hand_over_request::HandOverRequest;
use crate::transport::server::subject::log;
use crate::transport::session::Session;
use crate::transport::status::State;

impl<P: Port> ServerThread<P> {
    /// Handles a request of the owner to park: serves no front-end until the owner's next request.
    /// Vrings may be stopped meanwhile.
    pub(super) fn hand_over(
        &mut self,
        conversation: Option<(&Connection, &mut Session<P::Device>)>,
    ) -> Result<(), End> {
        self.signals.hand_over.clear();
        // Only the last request counts; owners of earlier ones have given up.
        let Some(HandOverRequest::Park(reply)) = self.requests.try_iter().last() else {
            return Ok(());
        };
        let (connection, mut session) = conversation.unzip();
        let mut files = Files::default();
        let saved = self.save(connection.zip(session.as_deref()), &mut files);
        let parks = saved.is_ok();
        if reply.send(saved.map(|saved| (saved, files))).is_err() || !parks {
            return Ok(());
        }
        let mut positions = Positions::new();
        let done = loop {
            match self.requests.recv() {
                Ok(HandOverRequest::Pause(reply)) => {
                    positions = session.as_mut().map(|session| session.pause()).unwrap_or_default();
                    let _ = reply.send(positions.clone());
                }
                Ok(HandOverRequest::Park(_) | HandOverRequest::Start(..)) => {}
                Ok(HandOverRequest::Unpark(done)) => break Some(done),
                // The owner is gone, so the server must end.
                Err(_) => break None,
            }
        };
        let Some(session) = session else { return Ok(()) };
        let started = session.start_saved(&positions);
        // The rings are where this process has left them.
        session.take_recovered();
        drop(done);
        started.map(drop).map_err(End::from)
    }

    fn save(
        &self,
        conversation: Option<(&Connection, &Session<P::Device>)>,
        files: &mut Files,
    ) -> Result<SavedServer, HandOverError> {
        let save = |(connection, session): (&Connection, &Session<P::Device>)| {
            let session = session.save(files)?;
            Ok::<_, HandOverError>(connection.save(files, session)?)
        };
        let connection = conversation.map(save).transpose()?;
        let status = self.status.read();
        Ok(SavedServer {
            listener: self.endpoint.save(files)?,
            connection,
            connections: status.connections,
            violations: status.violations,
            control_delayed: status.control_delayed,
            unclear: status.unclear,
            recovered: status.recovered,
        })
    }

    /// Restores the state of another process, and serves it once the owner requests that. `ready`
    /// reports whether the state is usable.
    pub(in crate::transport::server) fn run_restored(
        mut self,
        saved: SavedServer,
        mut files: Files,
        ready: Sender<Result<(), HandOverError>>,
    ) {
        let mut first = match self.restore(&saved, &mut files) {
            Ok(first) => first,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(()));
        let Ok(HandOverRequest::Start(positions, reply)) = self.requests.recv() else { return };
        self.endpoint.own();
        let started = first.as_mut().map_or(Ok(()), |Conversation { session, .. }| {
            let started = session.start_saved(&positions).map(drop);
            session.take_recovered();
            self.record_session(session);
            started
        });
        let _ = reply.send(started.as_ref().map(drop).map_err(ToString::to_string));
        if let Err(error) = started {
            self.record(&error.into());
            first = None;
        }
        self.run(first);
    }

    fn restore(
        &mut self,
        saved: &SavedServer,
        files: &mut Files,
    ) -> Result<Option<Conversation<P>>, HandOverError> {
        self.status.update(|status| {
            status.connections = saved.connections;
            status.violations = saved.violations;
            status.control_delayed = saved.control_delayed;
            status.unclear = saved.unclear;
            status.recovered = saved.recovered;
        });
        let Some(saved) = &saved.connection else { return Ok(None) };
        let connection = Connection::restore(saved, files)?;
        let account = self.port.account();
        account.begin_session();
        let session = Session::restore(self.port.device(), account, &saved.session, files)?;
        let peer = connection.peer();
        log!(info, self.subject, peer, "connection taken over");
        self.status.update(|status| (status.state, status.peer) = (State::Connected, peer));
        Ok(Some(Conversation { connection, session }))
    }
}
