//! The output of iperf.

/// Bytes, and bits a second, in the last line that iperf printed with `-f k`: the sum of all
/// streams, or the only one.
pub(super) fn sum(said: &str) -> Option<(f64, f64)> {
    let line = said.lines().rev().find(|line| line.contains("Kbits/sec"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |unit: &str| -> Option<f64> {
        let at = words.iter().position(|word| *word == unit)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    Some((before("KBytes")? * 1024.0, before("Kbits/sec")? * 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_read() {
        let said = "[  1] 0.0000-4.0 sec  70000 KBytes  143360 Kbits/sec\n\
            [SUM] 0.0000-4.0 sec  575000 KBytes  1177600 Kbits/sec\n[ CT] final connect times (min/avg/max/stdev)\n";
        assert_eq!(sum(said), Some((588_800_000.0, 1_177_600_000.0)));
        assert_eq!(sum("connect failed: Connection refused\n"), None);
    }
}
