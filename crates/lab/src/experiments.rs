//! The experiments. To add one, write its file and name it in [`ALL`]; docs/lab.md says how.

mod aggregate;
mod defaults;
mod fairness;
mod flows;
mod network_node;
mod peers;
mod polling;
mod queues;
mod receive_cost;
mod share;
mod spread;
mod storage;

use crate::experiment::Experiment;

/// All there are, in the order of the report.
pub const ALL: &[&dyn Experiment] = &[
    &queues::Queues,
    &aggregate::Aggregate,
    &defaults::Defaults,
    &receive_cost::ReceiveCost,
    &network_node::NetworkNode,
    &fairness::Fairness,
    &polling::Polling,
    &flows::Flows,
    &share::Share,
    &spread::FlowDistribution,
    &peers::Peers,
    &storage::Storage,
];

/// The experiment of that name.
pub fn find(name: &str) -> Option<&'static dyn Experiment> {
    ALL.iter().copied().find(|experiment| experiment.about().name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Platform, Size};
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = ALL.iter().map(|experiment| experiment.about().name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }

    #[test]
    fn every_plot_and_every_published_figure_is_of_something_measured() {
        for about in ALL.iter().map(|experiment| experiment.about()) {
            let known = |name: &str| about.figures.iter().any(|figure| figure.name == name);
            assert!(
                about.plots.iter().flat_map(|plot| plot.figures).all(|name| known(name)),
                "{}",
                about.name
            );
            assert!(about.published.iter().all(|one| known(one.figure)), "{}", about.name);
            assert!(!about.plots.is_empty() && !about.platforms.is_empty(), "{}", about.name);
            assert!(
                about.published.is_empty() || about.source.is_some(),
                "{}: published by whom?",
                about.name
            );
        }
    }

    #[test]
    fn no_two_points_are_in_the_same_place() {
        for experiment in ALL {
            for platform in experiment.about().platforms {
                for size in [Size::Tiny, Size::Quick, Size::Full] {
                    let points = experiment.points(*platform, size);
                    let places: BTreeSet<String> = points.iter().map(ToString::to_string).collect();
                    let name = experiment.about().name;
                    assert!(
                        !points.is_empty() && places.len() == points.len(),
                        "{name}, {platform:?}, {size:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn colours_of_backgrounds_differ() {
        let names = [Platform::Embedded, Platform::Qemu, Platform::Xen].map(Platform::name);
        assert_eq!(BTreeSet::from(names).len(), 3);
    }
}
