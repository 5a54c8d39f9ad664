//! `ringmain stats --watch`: shows rates repeatedly, also across restarts of the daemon.

use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control::api::Stats;
use rustix::termios::tcgetwinsize;

use crate::failure::Failure;
use crate::output::print;
use crate::rates::{Screen, rates};
use crate::{json, units};

/// The interval of further attempts while the daemon does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Shows what happens between one reply and the next.
///
/// # Errors
/// When the daemon does not answer the first request, or standard output is closed.
pub fn run(
    ask: impl Fn() -> Result<Stats, Failure>,
    interval: Duration,
    json: bool,
) -> Result<(), Failure> {
    let mut before = ask()?;
    if json {
        print(&json::line(&before)?)?;
    } else {
        draw("", "counting; rates follow")?;
    }
    loop {
        sleep(interval);
        let after = match ask() {
            Ok(after) => after,
            Err(failure) => wait_for_daemon(&ask, failure, json)?,
        };
        if json {
            // One object a line, for programs that follow.
            print(&json::line(&after)?)?;
        } else if after.pid == before.pid {
            draw(&rates(&before, &after, screen()), "")?;
        } else {
            draw("", &format!("the daemon was restarted (process {}); rates follow", after.pid))?;
        }
        before = after;
    }
}

/// Reports that no daemon answers, and asks until one does. A failure to print ends the wait.
fn wait_for_daemon(
    ask: impl Fn() -> Result<Stats, Failure>,
    failure: Failure,
    json: bool,
) -> Result<Stats, Failure> {
    let Failure::Client(_) = failure else { return Err(failure) };
    if json {
        eprintln!("ringmain: {failure}; waiting for it");
    } else {
        draw("", &format!("{failure}; waiting for it"))?;
    }
    loop {
        match ask() {
            Err(Failure::Client(_)) => sleep(RETRY),
            answer => return answer,
        }
    }
}

/// Shows a table and a remark under the time of day, on a screen from its top.
fn draw(table: &str, remark: &str) -> Result<(), Failure> {
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let remark = if remark.is_empty() { String::new() } else { format!("{remark}\n") };
    print(&format!("{clear}{}  {table}{remark}", units::clock(now)))
}

/// The terminal's size. An output that is no terminal is unlimited.
fn screen() -> Screen {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(Screen::UNLIMITED, |size| Screen {
        columns: size.ws_col.into(),
        rows: size.ws_row.into(),
    })
}
