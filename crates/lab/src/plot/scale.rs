//! The mapping from values to pixels, and the ticks of an axis.

use super::Axis;

/// Most places of an axis on which each place has a tick.
const MOST_PLACES: usize = 12;

/// One direction of a plot.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    log: bool,
    /// The places of numbers.
    pub(super) ticks: Vec<f64>,
    /// Labels of ticks that are no numbers.
    labels: &'static [&'static str],
}

impl Scale {
    /// The scale of places along the x axis: each has a tick if they are few.
    pub(super) fn of_places(axis: &Axis, mut places: Vec<f64>) -> Scale {
        places.retain(|place| place.is_finite() && (!axis.log || *place > 0.0));
        places.sort_by(f64::total_cmp);
        places.dedup();
        let (least, most) =
            (places.first().copied().unwrap_or(1.0), places.last().copied().unwrap_or(1.0));
        let scale = match axis.log {
            true => Scale::new(axis, least / 1.3, most * 1.3),
            false => {
                let beside =
                    if axis.labels.is_empty() { ((most - least) * 0.06).max(0.2) } else { 0.5 };
                Scale::new(axis, least - beside, most + beside)
            }
        };
        if places.len() <= MOST_PLACES { Scale { ticks: places, ..scale } } else { scale }
    }

    /// The scale of values along the y axis: from 0, unless equal distances are ratios.
    pub(super) fn of_values(axis: &Axis, values: impl Iterator<Item = f64>) -> Scale {
        let values: Vec<f64> =
            values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0)).collect();
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        match (axis.log, most > 0.0) {
            (true, true) => Scale::new(axis, least / 1.4, most * 1.4),
            (true, false) => Scale::new(axis, 1.0, 10.0),
            (false, true) => Scale::new(axis, least.min(0.0), most * 1.08),
            (false, false) => Scale::new(axis, 0.0, 1.0),
        }
    }

    fn new(axis: &Axis, from: f64, to: f64) -> Scale {
        let ticks = if axis.log { powers(from, to) } else { steps(from, to) };
        Scale { from, to, log: axis.log, ticks, labels: axis.labels }
    }

    /// Sets the names of 0, 1, 2, ...; without names, ticks have numbers.
    pub(super) fn name(&mut self, labels: &'static [&'static str]) {
        self.labels = labels;
    }

    /// The position of a value along the axis: 0 at its beginning, 1 at its end.
    pub(super) fn share(&self, value: f64) -> f64 {
        let by = |at: f64| if self.log { at.max(f64::MIN_POSITIVE).log10() } else { at };
        (by(value) - by(self.from)) / (by(self.to) - by(self.from))
    }

    /// The label of a tick.
    pub(super) fn label(&self, tick: f64) -> String {
        match self.labels {
            [] => number(tick),
            labels => labels.get(tick as usize).map_or(String::new(), |label| (*label).to_owned()),
        }
    }
}

/// Round numbers in equal steps, five to ten of them.
fn steps(from: f64, to: f64) -> Vec<f64> {
    let raw = (to - from) / 6.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|n| n * power)
        .find(|step| *step >= raw)
        .unwrap_or(raw);
    let (first, last) = ((from / step).ceil() as i64, (to / step).floor() as i64);
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Powers of ten, and values between them if there are few.
fn powers(from: f64, to: f64) -> Vec<f64> {
    let between: &[f64] = if to / from < 300.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let (first, last) = (from.log10().floor() as i32, to.log10().ceil() as i32);
    let all = (first..=last).flat_map(|power| between.iter().map(move |n| n * 10f64.powi(power)));
    all.filter(|tick| (from..=to).contains(tick)).collect()
}

/// A round number in its shortest form.
fn number(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    if rounded.abs() >= 1e6 { format!("{} M", rounded / 1e6) } else { rounded.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(steps(0.0, 11.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(
            steps(0.0, 0.35).into_iter().map(number).collect::<Vec<_>>(),
            ["0", "0.1", "0.2", "0.3"]
        );
        assert_eq!(powers(0.5, 20.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(powers(0.5, 2000.0), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn few_places_have_a_tick_each() {
        let scale = Scale::of_places(&Axis::default(), vec![8.0, 1.0, 2.0, 2.0]);
        assert_eq!(scale.ticks, [1.0, 2.0, 8.0]);
        assert!(scale.share(1.0) > 0.0 && scale.share(8.0) < 1.0);
        assert!(
            Scale::of_places(&Axis::default(), (0..99).map(f64::from).collect()).ticks.len() < 12
        );
    }

    #[test]
    fn names_stand_for_numbers() {
        let scale = Scale::of_places(
            &Axis { labels: &["none", "some"], ..Axis::default() },
            vec![0.0, 1.0],
        );
        assert_eq!(
            scale.ticks.iter().map(|tick| scale.label(*tick)).collect::<Vec<_>>(),
            ["none", "some"]
        );
        assert_eq!(scale.share(0.0), 0.25);
    }

    #[test]
    fn an_empty_scale_is_valid() {
        for log in [false, true] {
            let axis = Axis { log, ..Axis::default() };
            for scale in [
                Scale::of_places(&axis, vec![]),
                Scale::of_values(&axis, [0.0, f64::NAN].into_iter()),
            ] {
                assert!(scale.share(1.0).is_finite(), "{scale:?}");
            }
        }
    }
}
