//! Counting by valgrind's callgrind: runs a command under it, and reads what it wrote.
//!
//! The file is a list of functions, each with lines of its own cost, and of calls with their
//! inclusive cost. Names are numbered where they first appear.
//! <https://valgrind.org/docs/manual/cl-format.html>

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::error::InstructionsError as Error;

/// The function whose calls are counted.
const COUNTED: &str = "*counted_round*";

/// The setting that makes glibc use the copies that every processor has. Its choice depends on the
/// processor otherwise.
const PLAIN_COPIES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX_Fast_Unaligned_Load,-SSSE3,-ERMS,-FSRM,-Prefer_ERMS,-Prefer_FSRM,-Prefer_MAP_32BIT_EXEC";

/// Runs this program with `args` under callgrind, which writes to `out`. Returns what it printed.
///
/// # Errors
/// When valgrind is not installed, or what it ran failed.
pub fn run(args: &[&str], out: &Path) -> Result<String, Error> {
    let binary = std::env::current_exe().map_err(|e| Error::system("find this program", e))?;
    // An older result must not be taken for this one.
    let _ = std::fs::remove_file(out);
    let mut file = std::ffi::OsString::from("--callgrind-out-file=");
    file.push(out);
    let mut command = Command::new("valgrind");
    command.args([
        "-q",
        "--tool=callgrind",
        "--collect-atstart=no",
        "--dump-line=yes",
        "--compress-strings=yes",
    ]);
    command.arg(format!("--toggle-collect={COUNTED}")).arg(file).arg(binary).args(args);
    command.env("GLIBC_TUNABLES", PLAIN_COPIES).env_remove("RUST_LOG");
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::NoValgrind,
        _ => Error::system("run valgrind", error),
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // The last line of the program, or else the first one of valgrind.
        let own = said.lines().find_map(|line| line.strip_prefix("bench-instructions: "));
        return Err(Error::Failed(
            own.or(said.lines().find(|line| !line.is_empty())).unwrap_or("it failed").into(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A function's costs.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// The name in callgrind's file.
    pub name: String,
    /// Instructions of its own.
    pub own: u64,
    /// Functions that it called, and instructions until they returned.
    pub calls: HashMap<usize, u64>,
}

impl Function {
    /// Instructions of its own and of all that it called.
    pub fn inclusive(&self) -> u64 {
        self.own + self.calls.values().sum::<u64>()
    }
}

/// The content of one file.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// All functions that were executed while it counted.
    pub functions: Vec<Function>,
    /// Instructions by source file, inlined functions in their own.
    pub files: HashMap<String, u64>,
}

impl Profile {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The first line that cannot be parsed.
    pub fn parse(text: &str) -> Result<Profile, Error> {
        let mut reader = Reader::default();
        for (number, line) in text.lines().enumerate() {
            reader
                .line(line)
                .ok_or_else(|| Error::Nonsense { line: number + 1, text: line.into() })?;
        }
        Ok(reader.profile)
    }

    /// Functions whose name `matches`.
    pub fn find<'a>(
        &'a self,
        matches: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = usize> + 'a {
        let functions = self.functions.iter().enumerate();
        functions.filter(move |(_, function)| matches(&function.name)).map(|(at, _)| at)
    }
}

/// Names by number, of functions or of files.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// The whole name for `(number) name` or `(number)`.
    fn resolve(&mut self, text: &str) -> Option<String> {
        let Some(rest) = text.strip_prefix('(') else { return Some(text.into()) };
        let (number, name) = rest.split_once(')')?;
        if let Some(name) = name.strip_prefix(' ') {
            self.0.insert(number.into(), name.into());
        }
        self.0.get(number).cloned()
    }
}

#[derive(Default)]
struct Reader {
    profile: Profile,
    functions: Names,
    files: Names,
    /// Where each function is in the profile.
    places: HashMap<String, usize>,
    /// The function, and the file, that lines belong to.
    function: usize,
    file: String,
    callee: usize,
    /// Whether the next line is the cost of the call before it.
    called: bool,
}

impl Reader {
    fn line(&mut self, line: &str) -> Option<()> {
        let Some((key, value)) = line.split_once('=') else {
            return self.cost(line);
        };
        match key {
            "fn" => self.function = self.function_at(value)?,
            "cfn" => self.callee = self.function_at(value)?,
            "fl" | "fi" | "fe" => self.file = self.files.resolve(value)?,
            "cfi" | "cfl" => drop(self.files.resolve(value)?),
            "calls" => self.called = true,
            // Objects and other entries are ignored.
            _ => {}
        }
        Some(())
    }

    /// A line of position and cost. Headers, and summaries, have a colon.
    fn cost(&mut self, line: &str) -> Option<()> {
        if line.is_empty() || line.starts_with('#') || line.contains(':') {
            return Some(());
        }
        let cost = line.split_whitespace().nth(1)?.parse::<u64>().ok()?;
        let function = self.profile.functions.get_mut(self.function)?;
        if std::mem::take(&mut self.called) {
            *function.calls.entry(self.callee).or_default() += cost;
        } else {
            function.own += cost;
            *self.profile.files.entry(self.file.clone()).or_default() += cost;
        }
        Some(())
    }

    fn function_at(&mut self, text: &str) -> Option<usize> {
        let name = self.functions.resolve(text)?;
        if let Some(&at) = self.places.get(&name) {
            return Some(at);
        }
        let at = self.profile.functions.len();
        self.profile.functions.push(Function { name: name.clone(), ..Function::default() });
        self.places.insert(name, at);
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# callgrind format
version: 1
positions: line
events: Ir

ob=(1) /bin/x
fl=(1) carry.rs
fn=(1) carry
16 20
+2 5
fi=(2) ring.rs
3 7
cfn=(2) fetch
calls=2 30
16 400
* 1

fn=(2)
30 390
cfn=(2)
calls=1 30
* 10

totals: 423
";

    #[test]
    fn own_costs_and_costs_of_calls_are_separate() {
        let profile = Profile::parse(TEXT).unwrap();
        let [carry, fetch] = &profile.functions[..] else { panic!("two functions") };
        assert_eq!((carry.name.as_str(), carry.own, carry.inclusive()), ("carry", 33, 433));
        assert_eq!((fetch.name.as_str(), fetch.own), ("fetch", 390));
        assert_eq!(profile.files["carry.rs"], 25);
        assert_eq!(profile.files["ring.rs"], 8 + 390);
    }

    #[test]
    fn invalid_values_are_found() {
        for line in ["fn=(7)", "12", "12 many"] {
            let text = format!("fn=(1) f\n{line}\n");
            assert!(
                matches!(Profile::parse(&text), Err(Error::Nonsense { line: 2, .. })),
                "{line}"
            );
        }
    }
}
