//! Comparisons and demonstrations as a user runs them.

mod common;

use std::fs;

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value as Json;

/// Short runs of some options, with a daemon of its own and without: figures are there, and what
/// follows from them.
#[test]
fn options_are_compared() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench-embedded", "--runs", "1", "--seconds", "0.1", "--without-iperf", "--only"];
    let said = common::lab()
        .args(args)
        .arg("interrupts-6,align")
        .arg("--out")
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    let table = String::from_utf8(said.stdout).unwrap();
    let cases: Vec<&str> =
        table.lines().filter(|line| line.starts_with(char::is_alphabetic)).collect();
    assert!(
        cases.iter().any(|line| line.starts_with("align ")) && table.contains("  why:   "),
        "{table}"
    );
    let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let result: Json = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    for row in result["rows"].as_array().unwrap() {
        for side in ["off", "on"] {
            assert!(row["rate"][side]["median"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let verdicts: Vec<&str> = result["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["switch"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["interrupts-6", "align"]);
}

/// Measurements disturb each other, and those that are disturbed are repeated: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
}

/// A short run without and with the thread: both have figures, and the thread is used.
#[test]
fn the_thread_for_interrupts_is_compared() {
    let _alone = alone();
    let args = ["--rates", "100000", "--runs", "1", "--seconds", "0.5"];
    let said = common::lab().arg("bench-interrupt-thread").args(args).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let table = String::from_utf8(said.stdout).unwrap();
    let by_thread = |who: &str| {
        let row = table
            .lines()
            .skip(1)
            .find(|line| line.contains(who))
            .unwrap_or_else(|| panic!("{table}"));
        row.split_whitespace().nth(4).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(by_thread(" worker "), 0.0, "{table}");
    assert!(by_thread(" thread ") > 0.0, "{table}");
}

/// Short phases on small disks, with a thread as the guest: all figures are there, and all data was
/// compared.
#[test]
fn disks_are_demonstrated() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let args = ["demo-disk", "--guests", "embedded", "--seconds", "0.1", "--size", "8"];
    let said = common::lab()
        .args(args)
        // A drive that is still writing what the compiler made keeps the disks waiting.
        .args(["--images", "/dev/shm", "--out"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    let result = fs::read_to_string(dir.path().join("report.json")).unwrap();
    let result: Json = serde_json::from_str(&result).unwrap();
    let points = result["points"].as_array().unwrap();
    assert_eq!(points.len(), 12, "{result:#}");
    for point in points {
        for figure in ["iops", "megabytes", "cpu_us_per_request"] {
            assert!(point[figure].as_f64().unwrap() > 0.0, "{point}");
        }
        assert!(point["latency"]["p50"].as_f64().unwrap() > 0.0, "{point}");
    }
    let verified = result["verified"].as_array().unwrap();
    assert!(verified.iter().all(|disk| disk["bytes"] == 8 << 20), "{verified:?}");
    assert_eq!(verified.len(), 3);
    assert!(dir.path().join("report.html").exists());
}

/// A short run of some points of disks, without the peer: figures are there, and the history.
#[test]
fn disks_are_measured() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench-disk", "--alone", "--runs", "1", "--seconds", "0.1", "--size", "8"];
    let said = common::lab()
        .args(args)
        .args(["--only", "null,file,file-write,queues,latency", "--memory"])
        .arg(dir.path())
        .arg("--out")
        .arg(dir.path().join("out"))
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    let table = String::from_utf8(said.stdout).unwrap();
    assert!(dir.path().join("out/history.jsonl").exists(), "{table}");
    let figures =
        |title: &str| table.lines().find(|line| line.starts_with(title)).map(str::to_owned);
    let titles = [
        "4 KiB reads of no medium",
        "4 KiB reads, QD 32",
        "4 KiB writes, QD 32",
        "4 queues",
        "4 KiB reads, QD 1",
    ];
    for title in titles {
        let row = figures(title).unwrap_or_else(|| panic!("{title} is missing in {table}"));
        assert!(!row.contains("failed"), "{table}");
    }
}
