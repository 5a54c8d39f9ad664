//! Commands that ask the running daemon.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use control::api::{self, Reply, Request};
use control::client::Client;
use control::config::PortSpec;

use crate::cli::{Json, Port, Profile, Stats};
use crate::failure::Failure;
use crate::{print, profile, rates, show};

/// Takes the reply that belongs to the question out of all that there could be.
macro_rules! expect {
    ($reply:expr, $kind:path) => {
        match $reply {
            $kind(inner) => inner,
            _ => return Err(Failure::Surprised),
        }
    };
}

/// `ringmain port ...`.
pub fn port(control: &Path, command: Port) -> Result<(), Failure> {
    let client = Client::new(control);
    match command {
        Port::Add(add) => {
            let port = PortSpec::from_flags(add.flags())?.to_request();
            client.ask(&Request::PortAdd { port })?;
            Ok(())
        }
        Port::Remove { name } => {
            client.ask(&Request::PortRemove { name })?;
            Ok(())
        }
        Port::List(Json { json }) => {
            let ports = expect!(client.ask(&Request::PortList)?, Reply::Ports);
            print(&if json { pretty(&ports)? } else { show::ports(&ports) })
        }
        Port::Show { name, json: Json { json } } => {
            let port = expect!(client.ask(&Request::PortShow { name })?, Reply::Port);
            print(&if json { pretty(&port)? } else { show::port(&port) })
        }
    }
}

/// `ringmain mac`.
pub fn mac(control: &Path, Json { json }: &Json) -> Result<(), Failure> {
    let rows = expect!(Client::new(control).ask(&Request::Mac)?, Reply::Macs);
    print(&if *json { pretty(&rows)? } else { show::macs(&rows) })
}

/// `ringmain stats`.
pub fn stats(control: &Path, args: &Stats) -> Result<(), Failure> {
    let client = Client::new(control);
    let ask = || look(&client, args.port.as_deref());
    match (args.watch, args.json.json) {
        (None, true) => print(&pretty(&ask()?)?),
        (None, false) => print(&show::stats(&ask()?)),
        (Some(seconds), true) => loop {
            // One object a line, for programs that follow.
            print(&format!("{}\n", serde_json::to_string(&ask()?).map_err(io::Error::from)?))?;
            sleep(Duration::from_secs(seconds));
        },
        (Some(seconds), false) => watch(ask, Duration::from_secs(seconds)),
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
    print(&if args.json.json { pretty(&profile::split(&found))? } else { profile::text(&found) })
}

fn watch(ask: impl Fn() -> Result<api::Stats, Failure>, every: Duration) -> Result<(), Failure> {
    // Home and clear, where there is a screen to clear.
    let home = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let mut before = ask()?;
    print(&format!("{home}{}", show::stats(&before)))?;
    loop {
        sleep(every);
        let after = ask()?;
        print(&format!("{home}{}\n", rates::rates(&before, &after)))?;
        before = after;
    }
}

fn look(client: &Client, port: Option<&str>) -> Result<api::Stats, Failure> {
    let mut stats = expect!(client.ask(&Request::Stats)?, Reply::Stats);
    if let Some(port) = port {
        stats.ports.retain(|other| other.name == port);
        if stats.ports.is_empty() {
            return Err(Failure::NoPort(port.to_owned()));
        }
    }
    Ok(*stats)
}

fn pretty(value: &impl serde::Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    text.push('\n');
    Ok(text)
}
