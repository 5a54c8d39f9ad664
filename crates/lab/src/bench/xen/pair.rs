//! One figure of both systems, side by side.

use serde::Serialize;

use crate::bench::series::Series;

/// Which of two figures is better.
#[derive(Clone, Copy, Debug)]
pub(super) enum Better {
    More,
    Less,
}

/// One figure, for both systems.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// Ringmain's.
    pub ringmain: Series,
    /// The kernel's.
    pub kernel: Series,
    /// How much better Ringmain is, round by round: above 1 is better.
    pub ratio: Series,
}

impl Pair {
    /// Compares a figure of the measurements of both systems, by rounds.
    pub(super) fn of<T>(
        ringmain: &[T],
        kernel: &[T],
        figure: fn(&T) -> f64,
        better: Better,
    ) -> Pair {
        let series = |runs: &[T]| Series::of(runs.iter().map(figure).collect());
        let ratio = |(ours, theirs): (&T, &T)| match better {
            Better::More => figure(ours) / figure(theirs),
            Better::Less => figure(theirs) / figure(ours),
        };
        let ratios = ringmain.iter().zip(kernel).map(ratio).filter(|ratio| ratio.is_finite());
        let ratio = Series::of(ratios.collect());
        Pair { ringmain: series(ringmain), kernel: series(kernel), ratio }
    }

    /// The names of the columns of [`cells`](Self::cells).
    pub(super) fn heads(kernel: &str) -> String {
        format!("  {:>18}{kernel:>18}{:>8}", "Ringmain", "ratio")
    }

    /// A part of a table's row: medians with their ranges, in a unit of so many of the figure's,
    /// and the ratio.
    pub(super) fn cells(&self, unit: f64) -> String {
        let ratio = self.ratio.median.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        format!("  {:>18}{:>18}{ratio:>8}", show(&self.ringmain, unit), show(&self.kernel, unit))
    }
}

fn show(series: &Series, unit: f64) -> String {
    match (series.median, series.least, series.most) {
        (Some(median), Some(least), Some(most)) => {
            format!("{:.0} ({:.0}-{:.0})", median / unit, least / unit, most / unit)
        }
        _ => "-".into(),
    }
}
