//! Methods of making long copies, side by side.

use ring::copy::measure::{BYTES, Measured, measure};
use ring::copy::method::{Method, SizeClass};

use crate::table::aligned;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds, of which the fastest of each method counts. The daemon measures 3 when it starts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
}

/// Measures, and shows the throughput of all methods.
pub fn table(args: &Args) -> String {
    let all = measure(args.rounds);
    let heads = all.iter().flat_map(|measured| {
        let Measured { class, .. } = measured;
        ["not cached", "cached"].map(|memory| format!("{} B, {memory}", class.usual()))
    });
    let mut rows = vec![row("GB/s", heads)];
    rows.extend(Method::ALL.map(|method| {
        let times = all.iter().map(|measured| measured.of(method));
        let rates = times.flat_map(|times| [times.cold, times.warm].map(rate));
        row(method.name(), rates)
    }));
    let mut text = aligned(&rows);
    for measured in &all {
        text +=
            &format!("copies of {} bytes and more: {}\n", measured.class.least(), measured.best());
    }
    text
}

/// A line of the table.
fn row(name: &str, cells: impl Iterator<Item = String>) -> [String; 1 + 2 * SizeClass::ALL.len()] {
    let mut line: [String; 1 + 2 * SizeClass::ALL.len()] = Default::default();
    line[0] = name.to_owned();
    line[1..].iter_mut().zip(cells).for_each(|(place, cell)| *place = cell);
    line
}

/// Bytes per nanosecond.
fn rate(nanos: u64) -> String {
    format!("{:.1}", BYTES as f64 / nanos.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_methods_and_what_was_chosen_are_in_the_table() {
        let text = table(&Args { rounds: 1 });
        assert_eq!(text.lines().count(), 1 + Method::ALL.len() + SizeClass::ALL.len(), "{text}");
        assert!(text.contains("65536 B, not cached"), "{text}");
        assert!(text.contains("copies of 8193 bytes and more: "), "{text}");
    }
}
