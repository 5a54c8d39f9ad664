//! The default numbers of workers and queues. A test compares the rule with the table in
//! docs/configuration.md.

/// Most queue pairs that a port may have.
pub const MAX_QUEUES: u16 = 16;

/// Most workers that are started by default.
const MOST_WORKERS: usize = 16;

/// Workers on a host with `cpus` CPUs: one for each, 16 at most.
pub fn workers(cpus: usize) -> usize {
    cpus.clamp(1, MOST_WORKERS)
}

/// Queue pairs that a port offers: one for each worker, 16 at most.
pub fn offered(workers: usize) -> u16 {
    u16::try_from(workers).unwrap_or(MAX_QUEUES).clamp(1, MAX_QUEUES)
}

/// Queue pairs that a guest with `vcpus` vCPUs uses of those that are offered. The guest's driver
/// chooses this number: virtio_net and xen-netfront follow the same rule.
pub fn used(vcpus: u16, offered: u16) -> u16 {
    vcpus.clamp(1, offered.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has a table with a row for each number of CPUs, and a column for each number of
    /// vCPUs.
    #[test]
    fn the_rule_in_the_documentation_is_this_one() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = std::fs::read_to_string(page).unwrap();
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let mut lines = page.lines().skip_while(|line| !line.starts_with("| CPUs of the host |"));
        let head = cells(lines.next().expect("the table of the rule"));
        let number = |text: &str| text.split(' ').next().unwrap().parse::<u16>().unwrap();
        let vcpus: Vec<u16> = head[3..].iter().map(|cell| number(cell)).collect();
        let rows: Vec<Vec<String>> =
            lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect();
        assert!(rows.len() >= 5 && vcpus.len() >= 4);
        for row in rows {
            let cpus: usize = row[0].parse().unwrap();
            let offered = offered(workers(cpus));
            let told: Vec<u16> = row[1..].iter().map(|cell| number(cell)).collect();
            let used = vcpus.iter().map(|vcpus| used(*vcpus, offered));
            let expected: Vec<u16> =
                [workers(cpus) as u16, offered].into_iter().chain(used).collect();
            assert_eq!(told, expected, "{cpus} CPUs");
        }
    }

    #[test]
    fn extremes_are_numbers_of_workers_and_queues_too() {
        assert_eq!((workers(0), workers(4096)), (1, 16));
        assert_eq!((offered(0), offered(64)), (1, 16));
        assert_eq!((used(0, 4), used(9, 0)), (1, 1));
    }
}
