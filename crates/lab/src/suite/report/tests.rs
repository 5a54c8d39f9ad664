use super::*;
use crate::experiment::record::tests::{empty, repetition};
use crate::experiment::{Platform, Verdict};

fn record(began: u64, size: Size) -> Record {
    let mut record = empty();
    record.began = began;
    record.configuration.size = size;
    record.repetitions = vec![repetition(0, 0, 12.5), repetition(1, 0, 20.0)];
    record
}

#[test]
fn a_report_shows_its_figures_and_where_they_come_from() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&[record(7, Size::Quick)], dir.path()).unwrap();
    let text = fs::read_to_string(path).unwrap();
    for shown in ["12.5", "20.0", "queues-embedded-7.json", "the run is not finished", "<svg"] {
        assert!(text.contains(shown), "{shown} is missing in {text}");
    }
    assert!(!text.contains("src=") && !text.contains("href="), "it needs something else");
    assert!(fs::read_dir(dir.path()).unwrap().count() > 1, "no plot stands beside it");
}

#[test]
fn a_version_names_its_program_once() {
    assert_eq!(versioned("iperf", "iperf version 2.1.8"), "iperf version 2.1.8");
    assert_eq!(versioned("ringmain", "0.1.0"), "ringmain 0.1.0");
}

#[test]
fn two_runs_of_an_experiment_have_their_own_plots() {
    let dir = tempfile::tempdir().unwrap();
    write(&[record(7, Size::Quick), record(8, Size::Quick)], dir.path()).unwrap();
    for file in ["queues-embedded-7-throughput.svg", "queues-embedded-8-throughput.svg"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }
}

#[test]
fn doubtful_figures_give_no_verdicts_or_remarks() {
    let mut record = record(7, Size::Quick);
    let more = |one: &Repetition| {
        (1..3).map(|round| Repetition { round, ..one.clone() }).collect::<Vec<_>>()
    };
    record.repetitions =
        record.repetitions.iter().flat_map(|one| [vec![one.clone()], more(one)].concat()).collect();
    (record.configuration.rounds, record.finished) = (3, Some(8));
    let shown = |record: &Record| {
        let finding =
            Finding { published: "more".into(), here: "less".into(), verdict: Verdict::NotSo };
        let results = Results::new(record);
        findings(&[finding], results.doubt()).into_string()
            + &remarks(experiments::ALL[0], &results).concat()
    };
    let certain = shown(&record);
    assert!(certain.contains("not so here") && !certain.contains("No conclusions"), "{certain}");
    record.repetitions[0].disturbed = true;
    let doubtful = shown(&record);
    assert!(
        doubtful.contains("too few undisturbed") && doubtful.contains("No conclusions"),
        "{doubtful}"
    );
    assert!(!doubtful.contains("not so here"), "{doubtful}");
}

#[test]
fn the_newest_that_measures_is_reported() {
    let elsewhere = |mut record: Record| {
        record.configuration.platform = Platform::Qemu;
        record
    };
    let unknown = |mut record: Record| {
        record.configuration.experiment = "gone".into();
        record
    };
    let idle = |mut record: Record| {
        record.repetitions.clear();
        record
    };
    let chosen = newest(vec![
        record(1, Size::Quick),
        record(2, Size::Quick),
        record(3, Size::Tiny),
        elsewhere(record(4, Size::Tiny)),
        unknown(record(5, Size::Full)),
        idle(record(6, Size::Full)),
    ]);
    assert_eq!(chosen.iter().map(|record| record.began).collect::<Vec<_>>(), [2, 4]);
}
