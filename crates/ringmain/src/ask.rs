//! Commands that send one request to the running daemon.

use std::path::Path;
use std::time::Duration;

use control::api::{self, PacketQuery, Reply, Request};
use control::client::Client;
use control::config::{self, DiskSpec, PortSpec};
use serde::Serialize;

use crate::cli::{Budget, Disk, Json, Overlay, Port, Profile, Reload, Rules, Stats, Which};
use crate::failure::Failure;
use crate::output::print;
use crate::{json, limits, profile, reload, show, show_disk, show_overlay, show_rules, watch};

/// Takes the reply that belongs to the request, and refuses all other replies.
macro_rules! expect {
    ($reply:expr, $kind:path) => {
        match $reply {
            $kind(inner) => inner,
            _ => return Err(Failure::Mismatch),
        }
    };
}

/// `ringmain port ...`.
pub fn port(control: &Path, command: Port) -> Result<(), Failure> {
    let client = Client::new(control);
    let request = match command {
        Port::Add(add) => {
            Request::PortAdd { port: PortSpec::from_flags(&add.flags())?.to_request() }
        }
        Port::Remove { name } => Request::PortRemove { name },
        Port::Set { name, changes } => {
            Request::PortSet { name, set: config::port_changes(&changes)? }
        }
        Port::List(format) => {
            let ports = expect!(client.ask(&Request::PortList)?, Reply::Ports);
            return print_list(format, "ports", &ports, show::ports);
        }
        Port::Show { name, json } => {
            let port = expect!(client.ask(&Request::PortShow { name })?, Reply::Port);
            return print_one(json, &*port, show::port);
        }
    };
    client.ask(&request)?;
    Ok(())
}

/// `ringmain budget ...`.
pub fn budget(control: &Path, command: Budget) -> Result<(), Failure> {
    let client = Client::new(control);
    let request = match command {
        Budget::Add { name, limits } => {
            let mut budget = config::budget_changes(&limits)?;
            budget.insert("name".to_owned(), name.into());
            Request::BudgetAdd { budget }
        }
        Budget::Set { name, changes } => {
            Request::BudgetSet { name, set: config::budget_changes(&changes)? }
        }
        Budget::Remove { name } => Request::BudgetRemove { name },
        Budget::List(format) => {
            let budgets = expect!(client.ask(&Request::BudgetList)?, Reply::Budgets);
            return print_list(format, "budgets", &budgets, limits::budgets);
        }
        Budget::Show { name, json } => {
            let budget = expect!(client.ask(&Request::BudgetShow { name })?, Reply::Budget);
            return print_one(json, &*budget, limits::budget);
        }
    };
    client.ask(&request)?;
    Ok(())
}

/// `ringmain disk ...`.
pub fn disk(control: &Path, command: Disk) -> Result<(), Failure> {
    let client = Client::new(control);
    let request = match command {
        Disk::Add(add) => {
            Request::DiskAdd { disk: DiskSpec::from_flags(&add.flags())?.to_request() }
        }
        Disk::Remove { name } => Request::DiskRemove { name },
        Disk::Set { name, changes } => {
            Request::DiskSet { name, set: config::disk_changes(&changes)? }
        }
        Disk::Resize { name, size: bytes } => Request::DiskResize { name, bytes },
        Disk::List(format) => {
            let disks = expect!(client.ask(&Request::DiskList)?, Reply::Disks);
            return print_list(format, "disks", &disks, show_disk::disks);
        }
        Disk::Show { name, json } => {
            let disk = expect!(client.ask(&Request::DiskShow { name })?, Reply::Disk);
            return print_one(json, &*disk, show_disk::disk);
        }
    };
    client.ask(&request)?;
    Ok(())
}

/// `ringmain rules ...`.
pub fn rules(control: &Path, command: Rules) -> Result<(), Failure> {
    let client = Client::new(control);
    match command {
        Rules::Show { name, json } => {
            let rules = expect!(client.ask(&Request::RulesShow { name })?, Reply::Rules);
            print_list(json, "rules", &rules, show_rules::rules)
        }
        Rules::Test { name, direction, protocol, source, destination, json } => {
            let packet = PacketQuery { direction, protocol, source, destination };
            let request = Request::RulesTest { name, packet };
            let verdict = expect!(client.ask(&request)?, Reply::Verdict);
            print_one(json, &*verdict, show_rules::verdict)
        }
    }
}

/// `ringmain overlay ...`.
pub fn overlay(control: &Path, command: Overlay) -> Result<(), Failure> {
    let client = Client::new(control);
    let (Overlay::Show(which) | Overlay::Peers(which) | Overlay::Macs(which)) = &command;
    let Which { name, json } = which;
    let mut overlays = expect!(client.ask(&Request::OverlayList)?, Reply::Overlays);
    if let Some(name) = name {
        overlays.retain(|overlay| overlay.name == *name);
        if overlays.is_empty() {
            return Err(Failure::NoOverlay(name.clone()));
        }
    }
    match &command {
        Overlay::Show(_) => print_list(*json, "overlays", &overlays, show_overlay::overlays),
        Overlay::Peers(_) if json.json => {
            let peers: Vec<_> =
                show_overlay::all_peers(&overlays).map(|(_, peer)| peer.clone()).collect();
            print_list(*json, "peers", &peers, |_| String::new())
        }
        Overlay::Peers(_) => print(&show_overlay::peers(&overlays)),
        Overlay::Macs(_) => {
            let rows = expect!(client.ask(&Request::Mac)?, Reply::Macs);
            let found: Vec<_> = rows
                .iter()
                .filter_map(|row| {
                    let (overlay, peer) = show_overlay::all_peers(&overlays)
                        .find(|(_, peer)| peer.port == row.port)?;
                    Some((row, overlay, peer))
                })
                .collect();
            if !json.json {
                return print(&show_overlay::macs(&found));
            }
            let rows: Vec<_> = found.into_iter().map(|(row, ..)| row.clone()).collect();
            print_list(*json, "addresses", &rows, |_| String::new())
        }
    }
}

/// Prints a list, as text or as JSON under a name.
fn print_list<T: Serialize>(
    Json { json }: Json,
    name: &str,
    list: &[T],
    text: fn(&[T]) -> String,
) -> Result<(), Failure> {
    print(&if json { json::list(name, &list)? } else { text(list) })
}

/// Prints one thing, as text or as JSON.
fn print_one<T: Serialize>(
    Json { json }: Json,
    one: &T,
    text: fn(&T) -> String,
) -> Result<(), Failure> {
    print(&if json { json::pretty(one)? } else { text(one) })
}

/// `ringmain reload`.
pub fn reload(control: &Path, args: &Reload) -> Result<(), Failure> {
    let request = Request::Reload { dry_run: args.dry_run };
    let report = expect!(Client::new(control).ask(&request)?, Reply::Reload);
    print_one(args.json, &report, reload::text)
}

/// `ringmain mac`.
pub fn mac(control: &Path, format: Json) -> Result<(), Failure> {
    let rows = expect!(Client::new(control).ask(&Request::Mac)?, Reply::Macs);
    print_list(format, "addresses", &rows, show::macs)
}

/// `ringmain stats`.
pub fn stats(control: &Path, args: &Stats) -> Result<(), Failure> {
    let client = Client::new(control);
    let ask = || get_stats(&client, args.port.as_deref());
    match args.watch {
        Some(seconds) => watch::run(ask, Duration::from_secs(seconds), args.json.json),
        None if args.json.json => print(&json::pretty(&ask()?)?),
        None => print(&show::stats(&ask()?)),
    }
}

/// `ringmain profile`.
pub fn profile(control: &Path, args: &Profile) -> Result<(), Failure> {
    let mut found = Client::new(control).profile(Duration::from_secs(args.seconds))?;
    if let Some(port) = &args.port {
        found.ports.retain(|other| other.name == *port);
        if found.ports.is_empty() {
            return Err(Failure::NoPort(port.clone()));
        }
    }
    let json = args.json.json;
    print(&if json { json::pretty(&profile::split(&found))? } else { profile::text(&found) })
}

fn get_stats(client: &Client, port: Option<&str>) -> Result<api::Stats, Failure> {
    let mut stats = expect!(client.ask(&Request::Stats)?, Reply::Stats);
    if let Some(port) = port {
        stats.ports.retain(|other| other.name == port);
        stats.disks.clear();
        if stats.ports.is_empty() {
            return Err(Failure::NoPort(port.to_owned()));
        }
    }
    Ok(*stats)
}
