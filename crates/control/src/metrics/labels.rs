//! The labels of a sample, in the text format of Prometheus.

/// Labels in braces.
pub fn labels(labels: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    let all: Vec<String> = labels.iter().map(one).collect();
    format!("{{{}}}", all.join(","))
}

/// A label's value as the format has it. Names and paths are the operator's, and may have any
/// character.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
