//! The messages of an experiment while it runs: a spinner with a clock on a terminal, plain lines
//! elsewhere. All on standard error, so that results can be piped.

use indicatif::{ProgressBar, ProgressStyle};
use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A message about the present work.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
}

/// Something that is being done. It says how long it took when it is done, and nothing when it is
/// dropped before.
#[derive(Debug)]
pub struct Stage {
    name: String,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new()
    }
}

impl Progress {
    /// Looks whether standard error is a terminal.
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal() }
    }

    /// Begins something that takes a while.
    pub fn stage(&self, name: impl Into<String>) -> Stage {
        let name = name.into();
        let bar = self.terminal.then(|| {
            let bar = ProgressBar::new_spinner().with_message(name.clone());
            // A template that cannot be read would show as the plain default.
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} {elapsed:.dim}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        if bar.is_none() {
            eprintln!("  {name} ...");
        }
        Stage { name, since: Instant::now(), bar }
    }

    /// Says something at once.
    pub fn line(&self, text: &str) {
        eprintln!("{text}");
    }
}

impl Stage {
    /// Says how far it is; only a terminal shows that.
    pub fn at(&self, detail: impl Into<Cow<'static, str>>) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {}", self.name, detail.into()));
        }
    }

    /// Ends it with success, and shows the outcome (may be empty).
    pub fn done(mut self, outcome: &str) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let outcome = if outcome.is_empty() { "done" } else { outcome };
        eprintln!("  {}: {outcome} ({:.1} s)", self.name, self.since.elapsed().as_secs_f64());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
