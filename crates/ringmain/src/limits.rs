//! Limits of ports, disks and budgets, for people.

use control::api::{BudgetReport, DirectionReport, LimitsReport, MemoryReport, PortReport};
use control::config::{BitRate, BurstBytes, Frames};

use crate::table::Table;

/// `ringmain budget list`.
pub fn budgets(budgets: &[BudgetReport]) -> String {
    if budgets.is_empty() {
        return "no budgets; add one with `ringmain budget add`\n".to_owned();
    }
    let mut table = Table::new(&["BUDGET", "SENDS AT MOST", "RECEIVES AT MOST", "PORTS"]);
    for BudgetReport { name, limits, ports } in budgets {
        let [sends, receives] = [&limits.tx, &limits.rx].map(direction);
        table.row([name.clone(), sends, receives, ports.join(" ")]);
    }
    table.render()
}

/// `ringmain budget show`.
pub fn budget(BudgetReport { name, limits, ports }: &BudgetReport) -> String {
    let ports = if ports.is_empty() { "none".to_owned() } else { ports.join(" ") };
    let [sends, receives] = lines(limits);
    let lines = [("budget", name.clone()), sends, receives, ("ports", ports)];
    lines.into_iter().map(|(what, value)| format!("{what:<12} {value}\n")).collect()
}

/// The limits of a port: lines for `ringmain port show`, if there are limits.
pub fn port(port: &PortReport) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if port.limits != LimitsReport::default() {
        all.extend(lines(&port.limits));
    }
    all.extend(port.budget.clone().map(|budget| ("budget", budget)));
    if port.total.tx_limited > 0 {
        let times = port.total.tx_limited;
        all.push(("tx limited", format!("frames waited {times} times for the rate of sending")));
    }
    if !port.addresses.is_empty() {
        all.push(("addresses", port.addresses.join(" ")));
    }
    if !port.security_groups.is_empty() {
        all.push(("groups", port.security_groups.join(" ")));
    }
    if let Some(connections) = port.tracked_connections {
        all.push(("tracked", format!("{connections} connections")));
    }
    all.extend(port.mirror.clone().map(|mirror| ("mirror", mirror)));
    all
}

/// Waits for a rate of sending, by port; nothing if there were none.
pub fn waits(ports: &[PortReport]) -> String {
    let mut table = Table::new(&["PORT", ">TX LIMITED"]);
    for port in ports.iter().filter(|port| port.total.tx_limited > 0) {
        table.row([port.name.clone(), port.total.tx_limited.to_string()]);
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

fn lines(limits: &LimitsReport) -> [(&'static str, String); 2] {
    let text = |limits| match direction(limits) {
        empty if empty.is_empty() => "no limit".to_owned(),
        text => text,
    };
    [("sends", text(&limits.tx)), ("receives", text(&limits.rx))]
}

/// The limits of a direction, as `100Mbit/s (burst 128KiB), 50k frames/s (burst 500)`.
fn direction(limits: &DirectionReport) -> String {
    let burst = |burst: Option<String>| burst.map_or(String::new(), |it| format!(" (burst {it})"));
    let bits = limits.bits_per_second.map(|rate| {
        let bytes = limits.burst_bytes.map(|bytes| BurstBytes(bytes).to_string());
        format!("{}/s{}", BitRate(rate), burst(bytes))
    });
    let frames = limits.frames_per_second.map(|rate| {
        let frames = limits.burst_frames.map(|frames| Frames(frames).to_string());
        format!("{} frames/s{}", Frames(rate), burst(frames))
    });
    bits.into_iter().chain(frames).collect::<Vec<_>>().join(", ")
}

/// How much of a peer's memory was allocated, and may be.
pub fn memory(memory: &MemoryReport) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (allocated, limit) = (mib(memory.allocated_bytes), mib(memory.limit_bytes));
    format!("{allocated} MiB allocated here, {limit} MiB at most")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BudgetReport {
        let tx = DirectionReport {
            bits_per_second: Some(1_500_000_000),
            burst_bytes: Some(1_875_000),
            frames_per_second: Some(50_000),
            burst_frames: Some(500),
        };
        let limits = LimitsReport { tx, rx: DirectionReport::default() };
        BudgetReport { name: "web".into(), limits, ports: vec!["vm-a".into(), "vm-b".into()] }
    }

    #[test]
    fn budgets_are_listed_in_a_table() {
        let want = "\
BUDGET  SENDS AT MOST                                              RECEIVES AT MOST  PORTS
web     1.5Gbit/s (burst 1.875MB), 50k frames/s (burst 500)        -                 vm-a vm-b
";
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeeze(&budgets(&[sample()])), squeeze(want));
        assert!(budgets(&[]).contains("ringmain budget add"));
    }

    #[test]
    fn a_budget_is_shown_in_detail() {
        let want = "\
budget       web
sends        1.5Gbit/s (burst 1.875MB), 50k frames/s (burst 500)
receives     no limit
ports        vm-a vm-b
";
        assert_eq!(budget(&sample()), want);
    }

    #[test]
    fn a_port_without_limits_has_no_lines_of_them() {
        assert!(port(&PortReport::default()).is_empty());
        let limited = PortReport {
            limits: sample().limits,
            budget: Some("web".into()),
            addresses: vec!["10.0.0.2".into(), "2001:db8::/64".into()],
            ..PortReport::default()
        };
        let lines = port(&limited);
        assert_eq!(lines[1], ("receives", "no limit".into()));
        assert_eq!(
            lines[2..],
            [("budget", "web".to_owned()), ("addresses", "10.0.0.2 2001:db8::/64".to_owned()),]
        );
    }
}
