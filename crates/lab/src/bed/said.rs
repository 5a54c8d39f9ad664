//! What iperf says with `-f b`, which is exact.

/// The bytes of each stream, in the order in which it tells of them.
pub(super) fn streams(said: &str) -> Vec<u64> {
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let unit = words.iter().position(|word| *word == "Bytes")?;
        words.get(unit.checked_sub(1)?)?.parse().ok()
    };
    let streams = said.lines().filter(|line| line.ends_with("bits/sec") && !line.contains("SUM"));
    streams.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Client connecting to 127.0.0.1, TCP port 5001\nTCP window size: 16384 Byte (default)\n\
        [  1] local 127.0.0.1 port 34148 connected with 127.0.0.1 port 5001 (icwnd/mss/irtt=319/32741/145)\n\
        [  2] local 127.0.0.1 port 34162 connected with 127.0.0.1 port 5001 (icwnd/mss/irtt=319/32741/21)\n\
        [ ID] Interval       Transfer     Bandwidth\n\
        [  2] 0.0000-1.0095 sec  1175060540 Bytes  9312057026 bits/sec\n\
        [  1] 0.0000-1.0094 sec  1566048316 Bytes  12411187683 bits/sec\n\
        [SUM] 0.0000-1.0026 sec  2741108856 Bytes  28783066731 bits/sec\n";

    #[test]
    fn streams_are_told_one_by_one() {
        assert_eq!(streams(SAID), [1_175_060_540, 1_566_048_316]);
    }

    #[test]
    fn a_complaint_is_no_stream() {
        assert!(streams("connect failed: Connection refused\n").is_empty());
    }
}
