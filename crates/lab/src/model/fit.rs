//! How long locks take from CPU to CPU: the time with which the simulation of two threads, which
//! copy a thousand bytes each time, agrees with the measurement of two such threads.
//!
//! With copies of single bytes a thread would often take a lock again before the other one, which
//! waits, sees that the lock is free. Such a fit predicted up to 37 % too much for copies as long
//! as frames.

use super::costs::{Costs, Era};
use super::inputs::{Handovers, Inputs};
use simulation::run;

/// Bytes of each copy.
pub const FITTED: f64 = 1000.0;
/// A longer time, in ns, has another cause.
const MOST: f64 = 20_000.0;
/// How often the range is halved.
const HALVINGS: u32 = 16;

/// Fits both designs.
pub fn fit(inputs: &mut Inputs) {
    for era in Era::ALL {
        let copies = generation(inputs, era).copies;
        *handovers(inputs, era) = Handovers::default();
        // Two guests' threads have nothing in common but what all guests have; what one guest's
        // share comes on top.
        let shared = search(inputs, era, copies.apart, true, |all| &mut all.shared);
        handovers(inputs, era).shared = shared;
        let own = search(inputs, era, copies.together, false, |all| &mut all.own);
        handovers(inputs, era).own = own;
    }
}

/// The handover with which two threads take `wanted` ns each for a copy.
fn search(
    inputs: &Inputs,
    era: Era,
    wanted: f64,
    apart: bool,
    which: fn(&mut Handovers) -> &mut f64,
) -> f64 {
    let takes = |time: f64| {
        let mut tried = inputs.clone();
        *which(handovers(&mut tried, era)) = time;
        2e9 / run(&Costs::new(&tried, era).copying(2, 1, FITTED, apart)).rate()
    };
    let (mut low, mut high) = (0.0, MOST);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if takes(middle) < wanted { low = middle } else { high = middle }
    }
    // Sometimes even 0 is too long.
    if takes(0.0) >= wanted { 0.0 } else { low }
}

fn generation(inputs: &Inputs, era: Era) -> &super::inputs::Generation {
    match era {
        Era::Old => &inputs.old,
        Era::New => &inputs.new,
    }
}

fn handovers(inputs: &mut Inputs, era: Era) -> &mut Handovers {
    match era {
        Era::Old => &mut inputs.old.handovers,
        Era::New => &mut inputs.new.handovers,
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::tests::some;
    use super::*;

    #[test]
    fn two_threads_are_as_fast_as_they_were() {
        let mut inputs = some();
        fit(&mut inputs);
        for era in Era::ALL {
            let copies = generation(&inputs, era).copies;
            for (apart, wanted) in [(true, copies.apart), (false, copies.together)] {
                let takes =
                    2e9 / run(&Costs::new(&inputs, era).copying(2, 1, FITTED, apart)).rate();
                assert!(
                    (takes / wanted - 1.0).abs() < 0.05,
                    "{era:?}, {apart}: {takes} is not {wanted}"
                );
            }
        }
    }

    #[test]
    fn a_fit_without_solution_is_none() {
        let mut inputs = some();
        inputs.new.copies.apart = 1.0;
        fit(&mut inputs);
        assert_eq!(inputs.new.handovers.shared, 0.0);
    }
}
