//! Rules of ports, and answers to questions about them, as text.

use control::api::{RuleReport, RuleVerdict};

use crate::table::Table;

/// A line for each rule.
pub fn rules(rules: &[RuleReport]) -> String {
    if rules.is_empty() {
        return "no rules: the port is in no security group, or its groups are empty\n".to_owned();
    }
    let mut table = Table::new(&["GROUP", "RULE"]);
    for RuleReport { group, rule } in rules {
        table.row([group.clone(), rule.clone()]);
    }
    table.render()
}

/// Whether a packet passes, and why.
pub fn verdict(RuleVerdict { passes, reason, .. }: &RuleVerdict) -> String {
    format!("{}: {reason}\n", if *passes { "passes" } else { "dropped" })
}
