use std::path::Path;

use network::fabric::Workers;
use serde_json::json;

use super::*;

/// Ports of a fabric with one worker.
fn ports() -> Ports {
    let workers = Workers { count: 1, ..Workers::default() };
    Ports::new(Arc::new(Fabric::start(&workers).unwrap()), 1, PollingPolicy::default())
}

/// A vhost-user port that listens at `socket`.
fn spec(socket: &Path) -> PortSpec {
    let object = json!({ "name": "a", "kind": "vhost-user", "socket": socket });
    PortSpec::from_request(object.as_object().unwrap(), [].into_iter(), Path::new("/control"))
        .unwrap()
}

/// Starts a port as the maintenance thread does: apart from `ports`.
fn start(ports: &Ports, spec: &PortSpec) -> Result<Box<dyn Backend>, BackendError> {
    backend::start(&ports.fabric, spec, ports.workers)
}

#[test]
fn a_port_that_cannot_start_is_started_later() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ports, socket) = (ports(), dir.path().join("socket"));
    std::fs::write(&socket, "not a socket").unwrap();
    ports.add_configured(spec(&socket));
    let missing = ports.not_in_service();
    assert_eq!(missing.len(), 1);
    let backend = start(&ports, &missing[0]);
    assert!(backend.is_err());
    ports.started(&missing[0], backend);
    assert_eq!(ports.not_in_service().len(), 1);
    std::fs::remove_file(&socket).unwrap();
    let backend = start(&ports, &missing[0]);
    ports.started(&missing[0], backend);
    assert!(ports.not_in_service().is_empty());
    assert_eq!(ports.in_service().count(), 1);
}

/// The request for the removal comes while the maintenance thread starts the port.
#[test]
fn a_port_that_is_removed_while_it_starts_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ports, socket) = (ports(), dir.path().join("socket"));
    std::fs::write(&socket, "not a socket").unwrap();
    ports.add_configured(spec(&socket));
    let missing = ports.not_in_service();
    std::fs::remove_file(&socket).unwrap();
    let backend = start(&ports, &missing[0]);
    assert!(socket.exists());
    ports.remove("a").unwrap();
    ports.started(&missing[0], backend);
    assert!(!socket.exists() && ports.names().is_empty());
}

/// Another port of the same name comes in between: the outcome is not the new port's.
#[test]
fn a_port_that_is_replaced_while_it_starts_keeps_its_own_backend() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ports, [old, new]) = (ports(), ["old", "new"].map(|name| dir.path().join(name)));
    std::fs::write(&old, "not a socket").unwrap();
    ports.add_configured(spec(&old));
    let missing = ports.not_in_service();
    std::fs::remove_file(&old).unwrap();
    let backend = start(&ports, &missing[0]);
    ports.remove("a").unwrap();
    ports.add(spec(&new)).unwrap();
    ports.started(&missing[0], backend);
    assert!(!old.exists() && new.exists());
    assert_eq!(ports.in_service().count(), 1);
}
