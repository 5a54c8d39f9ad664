use std::path::Path;

use network::fabric::Workers;
use serde_json::json;

use super::*;
use crate::config::Known;

/// Ports of a fabric with one worker.
fn ports() -> Ports {
    let workers = Workers { count: 1, ..Workers::default() };
    Ports::new(Arc::new(Fabric::start(&workers).unwrap()), 1, PollingPolicy::default())
}

/// A vhost-user port that listens at `socket`.
fn spec(socket: &Path) -> PortSpec {
    named("a", socket)
}

fn named(name: &str, socket: &Path) -> PortSpec {
    let object = json!({ "name": name, "kind": "vhost-user", "socket": socket });
    PortSpec::from_request(
        object.as_object().unwrap(),
        [].into_iter(),
        Known::default(),
        Path::new("/control"),
    )
    .unwrap()
}

#[test]
fn the_memory_of_a_port_changes_in_service() {
    let dir = tempfile::tempdir().unwrap();
    let mut ports = ports();
    let spec = spec(&dir.path().join("socket"));
    ports.add_configured(spec);
    for (missing, _) in ports.not_in_service() {
        let backend = start(&ports, &missing);
        ports.started(&missing, backend);
    }
    let limit = |ports: &Ports| {
        let (_, _, backend) = ports.in_service().next().unwrap();
        backend.condition().memory.unwrap().1
    };
    let mut set = |value: serde_json::Value| {
        ports.set("a", json!({ "memory": value }).as_object().unwrap()).unwrap();
        limit(&ports)
    };
    assert_eq!(set(json!("64MiB")), 64 << 20);
    assert_eq!(set(json!(null)), 16 << 30);
}

#[test]
fn mirrors_need_maintenance_soon() {
    let dir = tempfile::tempdir().unwrap();
    let mut ports = ports();
    for name in ["a", "b"] {
        ports.add_configured(named(name, &dir.path().join(name)));
    }
    assert!(!ports.maintain());
    ports.set("a", json!({ "mirror": "b" }).as_object().unwrap()).unwrap();
    assert!(ports.maintain());
    ports.set("a", json!({ "mirror": null }).as_object().unwrap()).unwrap();
    assert!(!ports.maintain());
}

/// Starts a port as the maintenance thread does: apart from `ports`.
fn start(ports: &Ports, spec: &PortSpec) -> Result<Box<dyn Backend>, BackendError> {
    backend::start(&ports.fabric, spec, &RestrictionsTemplate::default(), ports.workers)
}

/// Ports of which one could not start, because its socket's path is a file.
fn with_a_missing_port(socket: &Path) -> (Ports, Vec<(Arc<PortSpec>, RestrictionsTemplate)>) {
    let mut ports = ports();
    std::fs::write(socket, "not a socket").unwrap();
    ports.add_configured(spec(socket));
    let missing = ports.not_in_service();
    assert_eq!(missing.len(), 1);
    (ports, missing)
}

#[test]
fn a_port_that_cannot_start_is_started_later() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let (mut ports, missing) = with_a_missing_port(&socket);
    let backend = start(&ports, &missing[0].0);
    assert!(backend.is_err());
    ports.started(&missing[0].0, backend);
    assert_eq!(ports.not_in_service().len(), 1);
    std::fs::remove_file(&socket).unwrap();
    let backend = start(&ports, &missing[0].0);
    ports.started(&missing[0].0, backend);
    assert!(ports.not_in_service().is_empty());
    assert_eq!(ports.in_service().count(), 1);
}

/// The request for the removal comes while the maintenance thread starts the port.
#[test]
fn a_port_that_is_removed_while_it_starts_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let (mut ports, missing) = with_a_missing_port(&socket);
    std::fs::remove_file(&socket).unwrap();
    let backend = start(&ports, &missing[0].0);
    assert!(socket.exists());
    ports.remove("a").unwrap();
    ports.started(&missing[0].0, backend);
    assert!(!socket.exists() && ports.names().is_empty());
}

/// Another port of the same name comes in between: the result does not belong to the new port.
#[test]
fn a_port_that_is_replaced_while_it_starts_keeps_its_own_backend() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
    let (mut ports, missing) = with_a_missing_port(&old);
    std::fs::remove_file(&old).unwrap();
    let backend = start(&ports, &missing[0].0);
    ports.remove("a").unwrap();
    ports.add(spec(&new)).unwrap();
    ports.started(&missing[0].0, backend);
    assert!(!old.exists() && new.exists());
    assert_eq!(ports.in_service().count(), 1);
}

fn object(json: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    json.as_object().unwrap().clone()
}

/// The limits of sending in force on the port "a": bits per second of its own, and its budget.
fn in_force(ports: &mut Ports) -> (Option<u64>, Option<String>) {
    let (reports, _) = ports.report();
    (reports[0].limits.tx.bits_per_second, reports[0].budget.clone())
}

#[test]
fn limits_change_in_service_and_refused_changes_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut ports = ports();
    ports.add(spec(&dir.path().join("socket"))).unwrap();
    ports.request_budget(&object(json!({ "name": "web", "tx_rate": "1Gbit" }))).unwrap();
    ports.set("a", &object(json!({ "tx_rate": "5Mbit", "budget": "web" }))).unwrap();
    assert_eq!(in_force(&mut ports), (Some(5_000_000), Some("web".to_owned())));
    let refused = ports.set("a", &object(json!({ "tx_rate": "1Mbit", "budget": "db" })));
    assert_eq!(refused.unwrap_err(), "budget: \"db\" is not a budget; known here: web");
    assert_eq!(in_force(&mut ports), (Some(5_000_000), Some("web".to_owned())));
    let refused = ports.set("b", &object(json!({ "tx_rate": "1Mbit" }))).unwrap_err();
    assert!(refused.starts_with("there is no port \"b\""), "{refused}");
    ports.set("a", &object(json!({ "tx_rate": null, "budget": null }))).unwrap();
    assert_eq!(in_force(&mut ports), (None, None));
}

#[test]
fn a_budget_that_ports_share_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut ports = ports();
    ports.request_budget(&object(json!({ "name": "web", "rx_frames": 50 }))).unwrap();
    let twice = ports.request_budget(&object(json!({ "name": "web", "rx_frames": 50 })));
    assert!(twice.unwrap_err().contains("there is a budget \"web\" already"));
    ports.add(spec(&dir.path().join("socket"))).unwrap();
    ports.set("a", &object(json!({ "budget": "web" }))).unwrap();
    let refused = ports.remove_budget("web").unwrap_err();
    assert_eq!(refused, "ports share budget \"web\": a; set their budget first");
    ports.set_budget("web", &object(json!({ "rx_frames": "1k" }))).unwrap();
    let [budget] = &ports.budgets()[..] else { panic!("one budget") };
    assert_eq!(budget.limits.rx.frames_per_second, Some(1000));
    assert_eq!(budget.ports, ["a"]);
    ports.set("a", &object(json!({ "budget": null }))).unwrap();
    ports.remove_budget("web").unwrap();
    for refused in [ports.remove_budget("web"), ports.set_budget("web", &object(json!({})))] {
        assert!(refused.unwrap_err().starts_with("there is no budget \"web\""));
    }
}

/// The change comes while the maintenance thread starts the port.
#[test]
fn a_port_that_is_changed_while_it_starts_is_started_anew() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let (mut ports, missing) = with_a_missing_port(&socket);
    std::fs::remove_file(&socket).unwrap();
    let backend = start(&ports, &missing[0].0);
    ports.set("a", &object(json!({ "tx_rate": "5Mbit" }))).unwrap();
    ports.started(&missing[0].0, backend);
    assert!(!socket.exists());
    let missing = ports.not_in_service();
    assert_eq!(missing[0].1.transmit.len(), 1);
    let backend = start(&ports, &missing[0].0);
    ports.started(&missing[0].0, backend);
    assert_eq!(in_force(&mut ports).0, Some(5_000_000));
    assert_eq!(ports.in_service().count(), 1);
}
