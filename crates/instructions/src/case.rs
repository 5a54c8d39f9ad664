//! The traffic that is counted.

/// One kind of traffic between guests, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name in results, in the budget and for `--only`.
    pub name: &'static str,
    /// The title in a table.
    pub title: &'static str,
    /// The generator's options.
    pub options: &'static str,
    /// Guests.
    pub guests: usize,
    /// Whether the frames come by a TAP, and all guests receive; or from guests.
    pub tap: bool,
    /// Turns of the worker before counting begins: all buffers, flows and ring entries have had
    /// their first use, and queues without senders are armed.
    pub warm: u32,
    /// Turns that are counted.
    pub counted: u32,
    /// The settings of all ports. None of them delays or drops a frame.
    pub setting: Setting,
}

/// A setting of ports that costs instructions for each frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// Nothing.
    None,
    /// A rate of bytes that a port sends.
    Rate,
    /// Rates of bytes and of frames in both directions.
    Rates,
    /// A list of addresses: the source guard.
    Addresses,
    /// The source guard's two parts: a MAC address that the port is locked to, and a list of
    /// addresses.
    Guard,
    /// A capture of whole frames, whose reader loses none.
    Capture,
}

impl Case {
    const fn new(name: &'static str, title: &'static str, options: &'static str) -> Self {
        let setting = Setting::None;
        Case { name, title, options, guests: 2, tap: false, warm: 256, counted: 256, setting }
    }

    const fn with(self, setting: Setting) -> Self {
        Case { setting, ..self }
    }

    const fn between(self, guests: usize) -> Self {
        Case { guests, ..self }
    }

    const fn by_tap(self, guests: usize) -> Self {
        Case { guests, tap: true, ..self }
    }

    const fn rounds(self, counted: u32) -> Self {
        Case { counted, ..self }
    }
}

/// All cases. Bursts are as long as the datapath's, unless they say otherwise.
pub const CASES: &[Case] = &[
    Case::new("64", "64 B, split ring", "--size 64 --burst 64"),
    Case::new("64-packed", "64 B, packed ring", "--size 64 --burst 64 --packed"),
    Case::new("64-burst-4", "64 B, bursts of 4", "--size 64 --burst 4").rounds(1024),
    Case::new("64-burst-1", "64 B, bursts of 1", "--size 64 --burst 1").rounds(1024),
    Case::new("64-both", "64 B, both directions", "--size 64 --burst 64 --direction both"),
    Case::new("64-flows", "64 B, 4096 flows", "--size 64 --burst 64 --flows 4096"),
    Case::new("64-2q", "64 B, 2 queue pairs", "--size 64 --burst 64 --queues 2 --flows 8"),
    Case::new("64-mixed", "64 B, 64 flows mixed", "--size 64 --burst 64 --queues 2 --flows 64"),
    Case::new("64-8", "64 B, 8 receivers mixed", "--size 64 --burst 64 --fan-out").between(9),
    Case::new(
        "64-8-2q",
        "64 B, 16 receiving queues",
        "--size 64 --burst 64 --fan-out --queues 2 --flows 128",
    )
    .between(9),
    Case::new("tap-8", "64 B, a TAP for 8 guests", "--size 64 --burst 64").by_tap(8),
    Case::new("imix", "64 to 1514 B mixed", "--mix --burst 64 --flows 60"),
    Case::new("64-interrupts", "64 B, interrupts on", "--size 64 --burst 64 --interrupts"),
    Case::new("64-rate", "64 B, one rate limit", "--size 64 --burst 64").with(Setting::Rate),
    Case::new("64-rates", "64 B, four rate limits", "--size 64 --burst 64").with(Setting::Rates),
    Case::new("64-addresses", "64 B, addresses", "--size 64 --burst 64").with(Setting::Addresses),
    Case::new("64-guard", "64 B, source guard", "--size 64 --burst 64").with(Setting::Guard),
    Case::new("64-capture", "64 B, capture", "--size 64 --burst 64").with(Setting::Capture),
    Case::new("1514", "1514 B", "--size 1514 --burst 64"),
    Case::new(
        "64k",
        "64 KB TSO, pages",
        "--size 64294 --tso --burst 8 --rx-ring 1024 --layout indirect --piece 4096",
    ),
];

/// Names of all cases.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.name)
}

/// Cases with these names, or all, in the order of the table.
pub fn select(wanted: &[String]) -> Vec<Case> {
    let is_wanted = |case: &&Case| wanted.is_empty() || wanted.iter().any(|name| name == case.name);
    CASES.iter().filter(is_wanted).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::Args;

    #[test]
    fn all_cases_are_options_of_the_generator() {
        for case in CASES {
            let ports = ["a"; 9][..case.guests].join(",");
            let from = if case.tap { "--from tap" } else { "" };
            let words = format!("--ports {ports} {from} {}", case.options);
            Args::from_words(words.split_whitespace()).unwrap();
        }
    }
}
