//! The commands that the project's pages print, run as they stand there, each page in a network
//! namespace and a folder of its own. Needs root and `scripts/deps embedded`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lab::guest::Deadline;
use pages::{Marker, Page, Part, script};

const LIMIT: Duration = Duration::from_secs(180);

/// Runs a script of bash in namespaces of its own, with an empty `/run`. All processes that it
/// starts end with it.
fn run_isolated(folder: &Path, script: &str) -> Output {
    fs::write(folder.join("script"), script).unwrap();
    let log = fs::File::create(folder.join("log")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    // `/proc` and `/sys` are those of the namespace, the loopback interface is up as on any
    // machine, and all users can open the TAP driver, as udev has it: containers may have another
    // mode.
    command.args([
        "sh",
        "-ec",
        "mount -t tmpfs run /run; mount -t sysfs sys /sys; ip link set lo up; \
         mount -t tmpfs net /dev/net; mknod -m 666 /dev/net/tun c 10 200; exec bash script",
    ]);
    let programs = Path::new(env!("CARGO_BIN_EXE_ringmain")).parent().unwrap();
    // Where the page for a first look has them.
    fs::create_dir(folder.join("target")).unwrap();
    std::os::unix::fs::symlink(programs, folder.join("target/release")).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", programs.display()));
    command.env_remove("RINGMAIN_CONTROL").current_dir(folder).stdin(Stdio::null());
    let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let mut deadline = Deadline::new(LIMIT);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if deadline.is_over() {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Output { status, stdout: fs::read(folder.join("log")).unwrap(), stderr: Vec::new() }
}

fn runs(page: &Page, script: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let output = run_isolated(folder.path(), script);
    let said = String::from_utf8_lossy(&output.stdout);
    let status = output.status;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}\n{said}", page.name)) }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn commands_that_pages_print_work() {
    let pages = pages::all();
    let scripts: Vec<(&Page, String)> =
        pages.iter().filter_map(|page| Some((page, script(page)?))).collect();
    assert!(scripts.len() > 1, "pages have commands that are run");
    let failed: Vec<String> =
        scripts.iter().filter_map(|(page, script)| runs(page, script).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The commands that write the files of a page that its configurations name.
fn files(page: &Page) -> String {
    let mut commands = String::new();
    for block in page.blocks().iter().filter(|block| block.language != "toml") {
        if let Some(Marker::File(name)) = &block.marker {
            commands.push_str(&heredoc(name, &block.text));
        }
    }
    commands
}

fn heredoc(file: &str, text: &str) -> String {
    format!("cat >{file} <<'END OF FILE'\n{text}END OF FILE\n")
}

/// The commands of a page that make the interfaces and addresses that its configurations name.
fn interfaces(page: &Page) -> String {
    let makes = |line: &&str| {
        let is_up = line.starts_with("ip link set") && line.ends_with(" up");
        line.starts_with("ip link add") || line.starts_with("ip addr add") || is_up
    };
    let mut commands = String::new();
    for part in page.parts() {
        let Part::Before(lines) = part else { continue };
        for line in lines.lines().filter(makes) {
            commands.push_str(line);
            commands.push('\n');
        }
    }
    commands
}

#[test]
#[ignore = "needs root and network namespaces"]
fn configurations_that_pages_print_are_valid() {
    let mut failed = Vec::new();
    for page in pages::all() {
        let (interfaces, files) = (interfaces(&page), files(&page));
        for block in page.blocks().iter().filter(|block| block.language == "toml") {
            if matches!(block.marker, Some(Marker::Needs(_))) {
                continue;
            }
            let check = "mkdir /run/ringmain\nringmain serve --check --config page.toml\n";
            let file = heredoc("page.toml", &block.text);
            let script = format!("set -e\n{interfaces}{files}{file}{check}");
            failed.extend(
                runs(&page, &script).err().map(|said| format!("line {}: {said}", block.line)),
            );
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The rating of a unit, where 0 is the best and 10 the worst.
fn rating(unit: &Path) -> f64 {
    let mut command = Command::new("systemd-analyze");
    let output = command.args(["security", "--no-pager", "--offline=true"]).arg(unit).output();
    let output = output.expect("systemd-analyze can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("Overall exposure level"));
    let line = line.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    let (_, rest) = line.rsplit_once(": ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs systemd-analyze"]
fn units_are_rated_two_or_better() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return println!("skipped: this host has no systemd-analyze");
    }
    for unit in ["systemd/ringmain.service", "xen/ringmain.service"] {
        let rating = rating(&root.join(unit));
        assert!(rating <= 2.0, "{unit} is rated {rating}");
    }
}
