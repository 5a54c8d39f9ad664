use super::*;
use crate::experiment::record::tests::ABOUT;
use crate::experiment::{About, Results};
use std::cell::Cell;

/// An experiment whose outcomes are given, by the number of the attempt.
struct Scripted(fn(u32) -> Result<Outcome, LabError>);

impl Experiment for Scripted {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, _: Size) -> Vec<Point> {
        vec![Point::new("a", 1), Point::new("a", 2)]
    }

    fn open<'a>(&'a self, _: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        let attempt = Cell::new(0);
        Ok(Box::new(move |_, _| (self.0)(attempt.replace(attempt.get() + 1))))
    }
}

fn order(out: &Path) -> Order {
    Order {
        platform: Platform::Embedded,
        size: Size::Tiny,
        rounds: Some(2),
        time: None,
        disturbed_above: 0.1,
        fresh: false,
        out: out.into(),
        cache: PathBuf::new(),
        program: Program::at(std::env::current_exe().unwrap()),
    }
}

fn value(value: f64) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.figure("throughput", value);
    outcome
}

#[test]
fn disturbed_repetitions_are_repeated_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let third = |n| Ok(Outcome { others: if n == 2 { 0.5 } else { 0.0 }, ..value(f64::from(n)) });
    let path = run(&Scripted(third), &order(dir.path()), &Progress::new()).unwrap();
    let record = Record::read(&path).unwrap();
    let made: Vec<_> =
        record.repetitions.iter().map(|one| (one.point, one.round, one.disturbed)).collect();
    assert_eq!(made, [(0, 0, false), (1, 0, false), (0, 1, true), (0, 1, false), (1, 1, false)]);
    assert_eq!(Results::new(&record).summary("a", 1, "throughput").unwrap().values, [0.0, 3.0]);
    assert!(record.finished.is_some());
}

#[test]
fn a_run_ends_on_a_machine_that_is_never_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let always = |n| Ok(Outcome { others: 1.0, ..value(f64::from(n)) });
    let record =
        Record::read(&run(&Scripted(always), &order(dir.path()), &Progress::new()).unwrap())
            .unwrap();
    assert_eq!(record.repetitions.len(), 4 * (AGAIN + 1));
    assert!(Results::new(&record).disturbed(0));
}

#[test]
fn an_unfinished_run_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let order = order(dir.path());
    let whole = run(&Scripted(|_| Ok(value(1.0))), &order, &Progress::new()).unwrap();
    let mut record = Record::read(&whole).unwrap();
    record.repetitions.truncate(3);
    record.finished = None;
    record.write(dir.path()).unwrap();
    assert_eq!(run(&Scripted(|_| Ok(value(2.0))), &order, &Progress::new()).unwrap(), whole);
    let values: Vec<f64> = Record::read(&whole)
        .unwrap()
        .repetitions
        .iter()
        .map(|one| one.outcome.figures["throughput"])
        .collect();
    assert_eq!(values, [1.0, 1.0, 1.0, 2.0]);
    // A finished run is not continued, nor is one with other settings.
    assert_ne!(run(&Scripted(|_| Ok(value(3.0))), &order, &Progress::new()).unwrap(), whole);
    record.write(dir.path()).unwrap();
    let longer = Order { time: Some(Duration::from_secs(9)), ..order.clone() };
    assert_ne!(run(&Scripted(|_| Ok(value(3.0))), &longer, &Progress::new()).unwrap(), whole);
    assert_ne!(
        run(&Scripted(|_| Ok(value(3.0))), &Order { fresh: true, ..order }, &Progress::new())
            .unwrap(),
        whole
    );
}

#[test]
fn failures_are_reported_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let failing = |n| if n == 0 { Err(LabError::Setting("x")) } else { Ok(value(1.0)) };
    run(&Scripted(failing), &order(dir.path()), &Progress::new()).unwrap();
    let breaking = |n| {
        let mut outcome = value(1.0);
        outcome.check("frames conserved", n != 1, "7 of 8");
        Ok(outcome)
    };
    match run(&Scripted(breaking), &order(dir.path()), &Progress::new()) {
        Err(LabError::Broken { count: 1, first, .. }) => {
            assert_eq!(first, "a, 2: frames conserved: 7 of 8")
        }
        other => panic!("{other:?}"),
    }
    let never = |_| Err(LabError::Setting("x"));
    assert!(matches!(
        run(&Scripted(never), &order(dir.path()), &Progress::new()),
        Err(LabError::Broken { count: 8, .. })
    ));
}

#[test]
fn two_runs_at_a_time_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _held = alone(dir.path()).unwrap();
    assert!(matches!(
        run(&Scripted(|_| Ok(value(1.0))), &order(dir.path()), &Progress::new()),
        Err(LabError::Busy(_))
    ));
}

#[test]
fn an_experiment_runs_only_where_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let order = Order { platform: Platform::Xen, ..order(dir.path()) };
    let said = run(&Scripted(|_| Ok(value(1.0))), &order, &Progress::new()).unwrap_err();
    assert!(said.is_usage() && said.to_string().ends_with("embedded"), "{said}");
}

#[test]
fn times_are_printed_in_readable_units() {
    assert_eq!([0.4, 65.0, 3600.0].map(clock), ["0 s", "1:05 min", "1:00 h"]);
}
