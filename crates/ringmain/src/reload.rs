//! The changes of a reload, for people.

use control::api::{ReloadAction, ReloadChange, ReloadReport, ReloadSubject};

/// A line for each change.
pub fn text(ReloadReport { changes, .. }: &ReloadReport) -> String {
    if changes.is_empty() {
        return "nothing to change\n".to_owned();
    }
    changes.iter().map(line).collect()
}

fn line(ReloadChange { action, subject, name, keys, reason }: &ReloadChange) -> String {
    let mut line = format!("{} {} {name}", action.name(), subject.name());
    if !keys.is_empty() {
        line += &format!(": {}", keys.join(", ").replace('_', "-"));
    }
    if *action == ReloadAction::Replace && *subject == ReloadSubject::Port {
        line += "; it is removed and added anew, so its sessions end";
    }
    if let Some(reason) = reason {
        line += &format!("; not in service yet: {reason}");
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_a_line() {
        let change = |action, name: &str, keys: &[&str], reason: Option<&str>| ReloadChange {
            action,
            subject: ReloadSubject::Port,
            name: name.into(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            reason: reason.map(str::to_owned),
        };
        let changes = vec![
            change(ReloadAction::Set, "a", &["budget", "tx_rate"], None),
            change(ReloadAction::Replace, "b", &["vlan"], None),
            change(ReloadAction::Add, "c", &[], Some("no such device")),
        ];
        let want = "\
set port a: budget, tx-rate
replace port b: vlan; it is removed and added anew, so its sessions end
add port c; not in service yet: no such device
";
        assert_eq!(text(&ReloadReport { applied: true, changes }), want);
        assert_eq!(text(&ReloadReport::default()), "nothing to change\n");
    }
}
