//! fio's command lines, and what it prints.

use std::time::Duration;

use serde_json::Value as Json;

use super::DiskDemoError;
use super::point::{Figures, Phase};
use crate::disk_load::{Operation, Order};
use crate::guest::Shell;
use load::Latency;

/// Bytes of random writes of each queue that are verified, and of serial ones.
const VERIFIED: [u64; 2] = [4 << 20, 8 << 20];

/// Options of all jobs: one for each queue, on a CPU of its own, past the guest's page cache. Each
/// has its part of the disk, which begins at a multiple of `part` bytes.
fn common(device: &str, queues: u16, part: u64) -> String {
    format!(
        "fio --name=requests --filename={device} --direct=1 --ioengine=io_uring --thread \
         --numjobs={queues} --cpus_allowed=0-{} --cpus_allowed_policy=split --group_reporting \
         --offset_increment={part} --output-format=json",
        queues - 1
    )
}

/// Requests of a phase on a disk of `length` bytes, for some seconds.
pub(crate) fn requests(
    device: &str,
    queues: u16,
    length: u64,
    phase: &Phase,
    time: Duration,
) -> String {
    let part = part(length, queues);
    let rw = match (phase.order, phase.operation) {
        (Order::Random, Operation::Read) => "randread",
        (Order::Random, Operation::Write) => "randwrite",
        (Order::Serial, Operation::Read) => "read",
        (Order::Serial, Operation::Write) => "write",
    };
    format!(
        "{} --rw={rw} --bs={} --iodepth={} --size={part} --norandommap --time_based \
         --runtime={}ms",
        common(device, queues, part),
        phase.bytes,
        phase.depth,
        time.as_millis()
    )
}

/// The same after a second in which nothing is measured.
pub(super) fn phase(
    device: &str,
    queues: u16,
    length: u64,
    phase: &Phase,
    time: Duration,
) -> String {
    format!("{} --ramp_time=1", requests(device, queues, length, phase, time))
}

/// Writes that are read back and compared by their checksums, in random and in serial order.
fn verifications(device: &str, queues: u16, length: u64) -> [String; 2] {
    let part = part(length, queues);
    let common = common(device, queues, part);
    let [random, serial] = VERIFIED.map(|bytes| bytes.min(part));
    let verify = "--iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1";
    [
        format!("{common} --rw=randwrite --bs=4k --size={random} {verify}"),
        format!("{common} --rw=write --bs=64k --size={serial} {verify}"),
    ]
}

/// The part of each queue, in whole MiB.
fn part(length: u64, queues: u16) -> u64 {
    length / u64::from(queues.max(1)) / (1 << 20) * (1 << 20)
}

/// The measurement of fio.
pub(crate) fn figures(said: &str, operation: Operation) -> Result<Figures, DiskDemoError> {
    let failed = || DiskDemoError::Fio(said.chars().take(500).collect());
    let job = job(said).ok_or_else(failed)?;
    let direction = &job[match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    }];
    let number = |value: &Json| value.as_f64();
    let micros =
        |quantile: &str| Some(direction["clat_ns"]["percentile"][quantile].as_f64()? / 1e3);
    let of = || {
        Some(Figures {
            iops: number(&direction["iops"])?,
            megabytes: number(&direction["bw_bytes"])? / 1e6,
            latency: Latency {
                p50: micros("50.000000")?,
                p90: micros("90.000000")?,
                p99: micros("99.000000")?,
                p99_9: micros("99.900000")?,
                max: number(&direction["clat_ns"]["max"])? / 1e3,
            },
        })
    };
    of().ok_or_else(failed)
}

/// Writes to a disk of `length` bytes of a guest, reads everything back and compares. Returns how
/// many bytes were compared.
pub(super) fn verify(
    guest: &dyn Shell,
    device: &str,
    queues: u16,
    length: u64,
    limit: Duration,
) -> Result<u64, DiskDemoError> {
    let commands = verifications(device, queues, length);
    commands.iter().map(|command| verified(&guest.must(command, limit)?)).sum()
}

/// Bytes that were read back and compared; an error if that are not all that were written.
fn verified(said: &str) -> Result<u64, DiskDemoError> {
    let failed = || DiskDemoError::Fio(said.chars().take(500).collect());
    let job = job(said).ok_or_else(failed)?;
    let bytes = |direction: &str| job[direction]["io_bytes"].as_u64();
    match (bytes("read"), bytes("write"), job["error"].as_i64()) {
        (Some(read), Some(written), Some(0)) if read == written && read > 0 => Ok(read),
        _ => Err(failed()),
    }
}

/// The only job of a result; fio may print remarks around it.
fn job(said: &str) -> Option<Json> {
    let text = said.get(said.find('{')?..=said.rfind('}')?)?;
    let result: Json = serde_json::from_str(text).ok()?;
    result["jobs"].get(0).cloned()
}

#[cfg(test)]
mod tests {
    use super::super::point::PHASES;
    use super::*;

    const SAID: &str = r#"note: both iodepth >= 1
        {"jobs": [{"error": 0,
          "read": {"io_bytes": 4096, "iops": 1000.5, "bw_bytes": 4098048, "clat_ns": {"max": 9000000,
            "percentile": {"50.000000": 80000, "90.000000": 90000, "99.000000": 200000, "99.900000": 900000}}},
          "write": {"io_bytes": 4096, "iops": 0}}]}
        "#;

    #[test]
    fn results_are_read_by_direction() {
        let figures = figures(SAID, Operation::Read).unwrap();
        assert_eq!((figures.iops, figures.megabytes), (1000.5, 4.098048));
        assert_eq!(
            (figures.latency.p50, figures.latency.p99_9, figures.latency.max),
            (80.0, 900.0, 9000.0)
        );
        assert!(super::figures(SAID, Operation::Write).is_err(), "no latency");
        assert!(super::figures("fio: not found", Operation::Read).is_err());
    }

    #[test]
    fn everything_that_was_written_must_have_been_compared() {
        assert_eq!(verified(SAID).unwrap(), 4096);
        assert!(verified(&SAID.replacen("4096", "2048", 1)).is_err());
        assert!(verified(&SAID.replace("\"error\": 0", "\"error\": 84")).is_err());
        assert!(verified(&SAID.replace("4096", "0")).is_err());
    }

    #[test]
    fn jobs_have_a_queue_and_a_part_of_the_disk_each() {
        let line = phase("/dev/vdc", 4, 130 << 20, &PHASES[3], Duration::from_secs(5));
        for part in [
            "--numjobs=4",
            "--cpus_allowed=0-3",
            "--size=33554432",
            "--offset_increment=33554432",
            "--rw=randread",
            "--runtime=5000ms",
        ] {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
        let lines = verifications("/dev/vdb", 2, 8 << 20);
        assert!(lines[0].contains("--size=4194304") && lines[1].contains("--size=4194304"));
    }
}
