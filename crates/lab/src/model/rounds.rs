//! Rounds of measurements: the costs and the cases that are predicted from them are measured in
//! turn, several times, because the pace of a machine wanders within minutes. The median counts.

use serde_json::Value;

use super::check::{Point, Samples, measure, points};
use super::fit::fit;
use super::inputs::Inputs;
use super::measure::{Measured, Meter};
use crate::bench::BenchError;
use crate::progress::Progress;

/// How many.
const ROUNDS: usize = 3;

/// Measures costs and cases. Returns the inputs of predictions, and all cases.
///
/// # Errors
/// See [`Meter::repeat`].
pub fn run(meter: &mut Meter, progress: &Progress) -> Result<(Inputs, Vec<Point>), BenchError> {
    let (mut inputs, mut samples) = (Vec::new(), Samples::default());
    for _ in 0..ROUNDS {
        inputs.push(meter.inputs(progress)?);
        measure(&mut samples, meter, progress)?;
    }
    let mut inputs = median(&inputs)
        .map_err(|error| BenchError::Start { what: "sum up measurements", source: error.into() })?;
    inputs.pace = meter.pace();
    fit(&mut inputs);
    let points = points(&inputs, &samples);
    Ok((inputs, points))
}

/// The median of each time.
fn median(all: &[Inputs]) -> Result<Inputs, serde_json::Error> {
    let values = all.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    serde_json::from_value(median_of(&values))
}

/// The median of numbers that are not whole. All else is as in the first value.
fn median_of(values: &[Value]) -> Value {
    let part = |of: &dyn Fn(&Value) -> Option<&Value>| {
        median_of(&values.iter().filter_map(of).cloned().collect::<Vec<_>>())
    };
    match values.first() {
        Some(Value::Object(first)) => {
            first.keys().map(|key| (key.clone(), part(&|value| value.get(key)))).collect()
        }
        Some(Value::Array(first)) => {
            (0..first.len()).map(|n| part(&|value| value.get(n))).collect()
        }
        Some(Value::Number(first)) if first.is_f64() => {
            Measured::of(values.iter().filter_map(Value::as_f64).collect()).median.into()
        }
        first => first.cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::tests::some;
    use super::*;

    #[test]
    fn each_time_is_the_median_of_its_own() {
        let with = |began, wake, claimed| {
            let mut inputs = some();
            (inputs.began, inputs.wake) = (began, wake);
            inputs.new.copies.claimed = claimed;
            inputs
        };
        let all = [with(7, 1.5, 30.0), with(8, 2.5, 10.0), with(9, 9.5, 20.0)];
        assert_eq!(median(&all).unwrap(), with(7, 2.5, 20.0));
    }
}
