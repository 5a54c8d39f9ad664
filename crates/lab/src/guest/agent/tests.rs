use super::message::{base64, unbase64};
use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn pair() -> (Arc<Agent>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Agent::new("test", ours, io::empty(), Clock::Wall).unwrap(), theirs)
}

#[test]
fn base64_as_in_the_rfc() {
    for (plain, coded) in
        [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
    {
        assert_eq!(base64(plain.as_bytes()), coded);
        assert_eq!(unbase64(coded).unwrap(), plain.as_bytes());
    }
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(unbase64(&base64(&all)).unwrap(), all);
    assert_eq!(unbase64("Zg="), None);
    assert_eq!(unbase64("Z!=="), None);
}

#[test]
fn a_shell_reads_commands_as_they_were_written() {
    let command = "echo 'a\\b'\t\"$x\"\n#100%% \u{e4}\\c";
    let printf = |shell: &str| {
        let script = format!("printf %b '{}'", escaped(command));
        std::process::Command::new(shell).args(["-c", &script]).output().unwrap().stdout
    };
    assert_eq!(String::from_utf8(printf("sh")).unwrap(), command);
}

#[test]
fn waiting_ends_when_the_guest_is_gone() {
    let (agent, mut guest) = pair();
    guest.write_all(b"hello b1\n").unwrap();
    agent.wait_for_boot(1, LIMIT).unwrap();
    let job = agent.start("sleep 1000").unwrap();
    // The rest of the command's output is lost.
    guest.write_all(b"done b1 1 \ngone\n").unwrap();
    assert!(matches!(job.wait(LIMIT), Err(GuestError::Ended { .. })));
}

#[test]
fn answers_are_matched_to_commands_in_any_order() {
    let (agent, mut guest) = pair();
    guest.write_all(b"\nhello b1\n").unwrap();
    agent.wait_for_boot(1, LIMIT).unwrap();
    let (first, second) = (agent.start("one").unwrap(), agent.start("two").unwrap());
    guest
        .write_all(
            format!("done b1 2 3 {}\ndone b1 1 0 {}\n", base64(b"2"), base64(b"1")).as_bytes(),
        )
        .unwrap();
    assert_eq!(first.wait(LIMIT).unwrap(), Output { code: 0, text: "1".into() });
    assert_eq!(second.wait(LIMIT).unwrap(), Output { code: 3, text: "2".into() });
    let mut sent = BufReader::new(guest);
    let mut line = String::new();
    sent.read_line(&mut line).unwrap();
    assert_eq!(line, "b1 run 1 one\n");
}

#[test]
fn a_reset_ends_commands_and_garbles_no_later_answer() {
    let (agent, mut guest) = pair();
    guest.write_all(b"\nhello b1\n").unwrap();
    agent.wait_for_boot(1, LIMIT).unwrap();
    let job = agent.start("long").unwrap();
    // The reset cuts an answer in two; the new boot says hello on a line of its own.
    guest.write_all(b"done b1 1 0 Zm9\nhello b2\n").unwrap();
    assert!(matches!(job.wait(LIMIT), Err(GuestError::Restarted { .. })));
    assert_eq!(agent.boots(), 2);
    let job = agent.start("next").unwrap();
    guest.write_all(b"done b1 2 0 Zm9v\ndone b2 2 7 \n").unwrap();
    assert_eq!(job.wait(LIMIT).unwrap(), Output { code: 7, text: String::new() });
}

#[test]
fn unknown_lines_belong_to_the_console() {
    let (agent, mut guest) = pair();
    guest.write_all(b"[    0.5] Kernel panic\nhello b1\n").unwrap();
    agent.wait_for_boot(1, LIMIT).unwrap();
    assert_eq!(agent.console(), "[    0.5] Kernel panic\n");
}

#[test]
fn closing_the_channel_ends_commands() {
    let (agent, mut guest) = pair();
    guest.write_all(b"hello b1\n").unwrap();
    agent.wait_for_boot(1, LIMIT).unwrap();
    let job = agent.start("long").unwrap();
    agent.close();
    assert!(matches!(job.wait(LIMIT), Err(GuestError::Ended { .. })));
}

#[test]
fn the_end_of_the_guest_ends_commands() {
    let (agent, mut guest) = pair();
    guest.write_all(b"hello b1\n").unwrap();
    agent.wait_for_boot(1, LIMIT).unwrap();
    let job = agent.start("long").unwrap();
    drop(guest);
    assert!(matches!(job.wait(LIMIT), Err(GuestError::Ended { .. })));
}

#[test]
fn commands_go_on_over_another_channel() {
    let (agent, mut before) = pair();
    before.write_all(b"hello b1\n").unwrap();
    agent.wait_for_boot(1, LIMIT).unwrap();
    let job = agent.start("true").unwrap();
    // Whoever carries the channel says that its guest is gone, perhaps late.
    before.write_all(b"gone\n").unwrap();
    agent.close();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    agent.reconnect(ours).unwrap();
    drop(before);
    theirs.write_all(format!("done b1 1 0 {}\n", base64(b"said")).as_bytes()).unwrap();
    assert_eq!(job.wait(LIMIT).unwrap().text, "said");
    let again = agent.start("true").unwrap();
    drop(theirs);
    assert!(again.wait(LIMIT).is_err(), "the guest is gone");
}
