use std::path::PathBuf;

use super::*;

fn parse(line: &str) -> Args {
    Args::from_words(line.split_whitespace()).unwrap()
}

#[test]
fn sockets_say_who_listens() {
    let args = parse("--ports a,server:b,client:/c --server");
    let listening: Vec<bool> = args.ports.iter().map(|p| args.listens(p)).collect();
    assert_eq!(listening, [true, true, false]);
    assert_eq!(args.ports[2].path, PathBuf::from("/c"));
}

#[test]
fn there_is_a_flow_for_each_queue_receiver_and_length() {
    let flows = |line: &str| parse(line).flows();
    assert_eq!(flows("--ports a,b --queues 4"), 4);
    assert_eq!(flows("--ports a,b,c,d --fan-out"), 3);
    assert_eq!(flows("--ports a,b,c,d --fan-out --mix --queues 4"), 36);
    assert_eq!(flows("--ports a,b --mix --flows 60"), 60);
    assert_eq!(parse("--ports a,b --mix").largest(), 1514);
}

#[test]
fn sizes_have_units() {
    assert_eq!(parse("--ports a --pool 100M").pool, Some(100 << 20));
    assert_eq!(bytes("64k"), Ok(65536));
    assert!(bytes("M").is_err());
    assert!(bytes("99999999999999999G").is_err());
}

#[test]
fn contradictions_are_refused() {
    for line in [
        "--ports a,b,c",
        "--ports a --fan-out",
        "--ports a --size 63",
        "--ports a --size 65550",
        "--ports a --size 75 --tso",
        "--ports a --ring 300",
        "--ports a --layout single --header separate",
        "--ports a --layout indirect --no-indirect",
        "--ports a,b --threads 3",
        "--ports a,b --number 3",
        "--ports a --window 0",
        "--ports a --duration 0",
    ] {
        assert!(parse(line).check().is_err(), "{line}");
    }
    assert!(parse("--ports a --ring 300 --packed").check().is_ok());
    assert!(parse("--ports a,b,c --fan-out").check().is_ok());
    assert!(Args::from_words(["--ports", "a", "--mix", "--size", "64"]).is_err());
    assert!(Args::from_words(["--ports", "a,b", "--fan-out", "--direction", "both"]).is_err());
    assert!(Args::from_words(["--ports", "a", "--window", "1", "--rate", "5"]).is_err());
    assert!(Args::from_words(["--ports", "a", "--gaps", "mixed"]).is_err(), "gaps of what rate?");
    assert!(Args::from_words(["--ports", "a", "--legacy", "--packed"]).is_err());
}
