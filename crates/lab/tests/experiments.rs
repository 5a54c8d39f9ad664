//! The laboratory as a user has it: each experiment in its tiny form, on processes as guests. Needs
//! root.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

const LONG: Duration = Duration::from_secs(120);

fn lab(out: &Path, args: &[&str]) -> Command {
    let mut command = common::lab();
    command.args(args).arg("--out").arg(out);
    command
}

/// Runs to a good end; what was printed.
fn done(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn record(path: &Path) -> Json {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn records(out: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
}

fn list<'a>(json: &'a Json, name: &str) -> &'a [Json] {
    json[name].as_array().map_or(&[], Vec::as_slice)
}

/// The checks that repetitions of each experiment must make: one of these sets each, and none of
/// the sets is missing.
const CHECKS: [(&str, &[&[&str]]); 12] = [
    ("queues", &[&["each stream is on a queue", "frames conserved", "streams complete"]]),
    ("aggregate", &[TCP, &["no use of a grant was refused"]]),
    ("defaults", &[TCP]),
    (
        "receive-cost",
        &[&[
            "frames came the way they were to",
            "frames conserved",
            "streams complete",
            "the profile has seen frames",
        ]],
    ),
    (
        "network-node",
        &[&["all goes through the forwarding guest", "frames conserved", "streams complete"]],
    ),
    ("fairness", &[TCP]),
    ("polling", &[FRAMES]),
    ("flows", &[FRAMES]),
    ("share", &[FRAMES]),
    ("spread", &[FRAMES]),
    // A bridge of the kernel's says nothing of frames.
    ("peers", &[TCP, &["streams complete"], FRAMES]),
    ("storage", &[&["each block is the one asked for", "reads conserved"]]),
];
const TCP: &[&str] = &["frames conserved", "streams complete"];
const FRAMES: &[&str] = &["frames conserved", "frames in order", "frames whole"];

/// The names of a repetition's checks, in order, each once.
fn names_of(checks: &[Json]) -> Vec<&str> {
    let names: BTreeSet<&str> = checks.iter().filter_map(|check| check["name"].as_str()).collect();
    names.into_iter().collect()
}

/// Streams over either design of the hypervisor were as many, and carried as many bytes.
fn both_designs_carry_the_same(record: &Json) {
    let points = list(record, "points");
    let carried = |design: &str| -> BTreeSet<String> {
        let of = |one: &Json| {
            let point = &points[usize::try_from(one["point"].as_u64()?).ok()?];
            let check =
                list(one, "checks").iter().find(|check| check["name"] == "streams complete")?;
            let is = point["settings"]["design"] == design;
            is.then(|| {
                format!(
                    "{} pairs, {} workers: {}",
                    point["settings"]["pairs"], point["x"], check["seen"]
                )
            })
        };
        list(record, "repetitions").iter().filter_map(of).collect()
    };
    let old = carried("old design");
    assert!(
        old.len() > 1 && old.iter().all(|said| said.contains(" bytes at both ends")),
        "{old:?}"
    );
    assert_eq!(old, carried("new design"));
}

#[test]
#[ignore = "needs root, iperf and network namespaces"]
fn every_experiment_keeps_its_invariants_and_can_be_reported() {
    let dir = tempfile::tempdir().unwrap();
    let printed = done(&mut lab(dir.path(), &["run", "--all", "--tiny", "--guests", "embedded"]));
    let paths: Vec<&Path> = printed.lines().map(Path::new).collect();
    assert_eq!(paths.len(), records(dir.path()).len());
    let mut names = Vec::new();
    for path in paths {
        let record = record(path);
        let name = record["experiment"].as_str().unwrap().to_owned();
        assert!(record["finished"].is_u64(), "{name}");
        let repetitions = list(&record, "repetitions");
        assert_eq!(repetitions.len(), list(&record, "points").len(), "{name}: {repetitions:?}");
        let made: BTreeSet<Vec<&str>> =
            repetitions.iter().map(|one| names_of(list(one, "checks"))).collect();
        let expected = CHECKS
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, all)| all.iter().map(|set| set.to_vec()));
        assert_eq!(made, expected.unwrap().collect(), "{name}");
        for one in repetitions {
            let checks = list(one, "checks");
            assert!(checks.iter().all(|check| check["held"] == true), "{name}: {one}");
            assert!(
                one["failed"].is_null()
                    && one["figures"].as_object().is_some_and(|it| !it.is_empty()),
                "{name}"
            );
        }
        if name == "aggregate" {
            both_designs_carry_the_same(&record);
        }
        let same = path.display().to_string();
        let compared = common::lab().args(["compare", &same, &same]).output();
        assert!(compared.unwrap().status.success(), "{name}");
        names.push(name);
    }
    let known: BTreeSet<&str> = CHECKS.iter().map(|(of, _)| *of).collect();
    assert_eq!(names.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
    let report = fs::read_to_string(done(&mut lab(dir.path(), &["report"])).trim()).unwrap();
    for name in names {
        assert!(report.contains(&format!("{name}-embedded-")), "{name} is not reported");
        let plots = fs::read_dir(dir.path()).unwrap().filter(|entry| {
            let file = entry.as_ref().unwrap().file_name().into_string().unwrap();
            file.starts_with(&format!("{name}-embedded-")) && file.ends_with(".svg")
        });
        assert!(plots.count() > 0, "{name} has no plot");
    }
}

#[test]
#[ignore = "needs root, iperf and network namespaces"]
fn an_interrupted_run_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["run", "queues", "--tiny", "--repetitions", "3"];
    let mut first = lab(dir.path(), &args).spawn().unwrap();
    let until = Instant::now() + LONG;
    let measured =
        || records(dir.path()).first().map_or(0, |path| list(&record(path), "repetitions").len());
    while measured() < 2 {
        assert!(
            Instant::now() < until && first.try_wait().unwrap().is_none(),
            "it ended by itself"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_raw(first.id().try_into().unwrap()).unwrap(), Signal::INT).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(130));
    let all = records(dir.path());
    let kept = record(&all[0]);
    assert!(kept["finished"].is_null());

    let printed = done(&mut lab(dir.path(), &args));
    assert_eq!(Path::new(printed.trim()), all[0], "it began anew");
    let whole = record(&all[0]);
    let before = list(&kept, "repetitions");
    assert_eq!(&list(&whole, "repetitions")[..before.len()], before, "what was measured is kept");
    assert_eq!(list(&whole, "repetitions").len(), 3 * list(&whole, "points").len());
    assert!(whole["finished"].is_u64());
}

/// Whether the kernel has tunnel offloads for TAP devices: Linux 6.17.
fn segments_tunnels() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    numbers.collect::<Vec<u32>>() >= vec![6, 17]
}

/// A short run of the comparison of overlays: frames of all kinds cross both kinds of wires, over
/// the kernel and over Ringmain's underlays.
#[test]
#[ignore = "needs root, ethtool and network namespaces"]
fn overlays_are_measured() {
    let out = tempfile::tempdir().unwrap();
    let points = match segments_tunnels() {
        true => "64,64-flows,1450,64k,64k-wire,64-xdp,64k-tap,64k-wire-tap",
        false => "64,64-flows,1450,64k,64k-wire,64-xdp",
    };
    let short = ["bench-overlay", "--runs", "1", "--seconds", "0.05", "--only", points];
    let table = done(&mut lab(out.path(), &short));
    let file = records(out.path()).pop().unwrap();
    let rows = record(&file)["rows"].as_array().cloned().unwrap();
    // Two figures each.
    assert_eq!(rows.len(), 2 * points.split(',').count(), "{table}");
    for row in rows {
        for side in [&row["ringmain"], &row["peer"]["series"]] {
            assert!(side["median"].as_f64() > Some(0.0), "{row}\n{table}");
        }
    }
}

#[test]
fn an_impossible_run_is_refused_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    for (args, said) in [
        (&["run", "nonsense"][..], "no experiment"),
        (&["run", "aggregate", "--guests", "xen"], "does not run on"),
        (&["report"], "run `ringmain-lab run` first"),
    ] {
        let output = lab(dir.path(), args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && stderr.contains(said) && stderr.lines().count() == 1,
            "{stderr}"
        );
    }
}
