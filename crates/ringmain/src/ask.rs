//! Commands that send one request to the running daemon.

use std::path::Path;
use std::time::Duration;

use control::api::{self, Reply, Request};
use control::client::Client;
use control::config::{self, DiskSpec, PortSpec};

use crate::cli::{Budget, Disk, Json, Port, Profile, Reload, Stats};
use crate::failure::Failure;
use crate::output::print;
use crate::{json, limits, profile, reload, show, show_disk, watch};

/// Takes the reply that belongs to the request out of all replies that there could be.
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
    match command {
        Port::Add(add) => {
            let port = PortSpec::from_flags(&add.flags())?.to_request();
            client.ask(&Request::PortAdd { port })?;
            Ok(())
        }
        Port::Remove { name } => {
            client.ask(&Request::PortRemove { name })?;
            Ok(())
        }
        Port::Set { name, changes } => {
            let set = config::port_changes(&changes)?;
            client.ask(&Request::PortSet { name, set })?;
            Ok(())
        }
        Port::List(Json { json }) => {
            let ports = expect!(client.ask(&Request::PortList)?, Reply::Ports);
            print(&if json { json::list("ports", &ports)? } else { show::ports(&ports) })
        }
        Port::Show { name, json: Json { json } } => {
            let port = expect!(client.ask(&Request::PortShow { name })?, Reply::Port);
            print(&if json { json::pretty(&port)? } else { show::port(&port) })
        }
    }
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
        Budget::List(Json { json }) => {
            let budgets = expect!(client.ask(&Request::BudgetList)?, Reply::Budgets);
            let text = || limits::budgets(&budgets);
            return print(&if json { json::list("budgets", &budgets)? } else { text() });
        }
        Budget::Show { name, json: Json { json } } => {
            let budget = expect!(client.ask(&Request::BudgetShow { name })?, Reply::Budget);
            return print(&if json { json::pretty(&budget)? } else { limits::budget(&budget) });
        }
    };
    client.ask(&request)?;
    Ok(())
}

/// `ringmain disk ...`.
pub fn disk(control: &Path, command: Disk) -> Result<(), Failure> {
    let client = Client::new(control);
    match command {
        Disk::Add(add) => {
            let disk = DiskSpec::from_flags(&add.flags())?.to_request();
            client.ask(&Request::DiskAdd { disk })?;
            Ok(())
        }
        Disk::Remove { name } => {
            client.ask(&Request::DiskRemove { name })?;
            Ok(())
        }
        Disk::Resize { name, size: bytes } => {
            client.ask(&Request::DiskResize { name, bytes })?;
            Ok(())
        }
        Disk::List(Json { json }) => {
            let disks = expect!(client.ask(&Request::DiskList)?, Reply::Disks);
            print(&if json { json::list("disks", &disks)? } else { show_disk::disks(&disks) })
        }
        Disk::Show { name, json: Json { json } } => {
            let disk = expect!(client.ask(&Request::DiskShow { name })?, Reply::Disk);
            print(&if json { json::pretty(&disk)? } else { show_disk::disk(&disk) })
        }
    }
}

/// `ringmain reload`.
pub fn reload(control: &Path, args: &Reload) -> Result<(), Failure> {
    let request = Request::Reload { dry_run: args.dry_run };
    let report = expect!(Client::new(control).ask(&request)?, Reply::Reload);
    print(&if args.json.json { json::pretty(&report)? } else { reload::text(&report) })
}

/// `ringmain mac`.
pub fn mac(control: &Path, Json { json }: &Json) -> Result<(), Failure> {
    let rows = expect!(Client::new(control).ask(&Request::Mac)?, Reply::Macs);
    print(&if *json { json::list("addresses", &rows)? } else { show::macs(&rows) })
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
