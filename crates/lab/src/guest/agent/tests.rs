use super::message::unbase64;
use super::*;
use program::base64;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The program of guests: a module here, so that it is formatted and checked like the rest.
#[path = "../../../agent/main.rs"]
#[expect(dead_code, reason = "its parts are used by its main function")]
mod program;

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

/// The program of guests, here.
struct Guest {
    agent: Arc<Agent>,
    program: Child,
    _folder: TempDir,
}

impl Guest {
    fn start() -> Guest {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        std::fs::write(&path, PROGRAM).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let (agent, theirs) = pair();
        let theirs = OwnedFd::from(theirs);
        let mut command = Command::new(&path);
        command
            .arg("hello")
            .stdin(Stdio::from(theirs.try_clone().unwrap()))
            .stdout(Stdio::from(theirs));
        let program = loop {
            match command.spawn() {
                // The child of another test has the file open for writing until it is another
                // program.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                started => break started.unwrap(),
            }
        };
        // The command also holds the guest's end.
        drop(command);
        agent.wait_for_boot(1, LIMIT).unwrap();
        Guest { agent, program, _folder: folder }
    }

    fn run(&self, command: &str) -> Output {
        self.agent.start(command).unwrap().wait(LIMIT).unwrap()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.program.kill().and_then(|()| self.program.wait());
    }
}

#[test]
fn the_program_runs_commands_as_they_were_written() {
    let guest = Guest::start();
    let said = guest.run("x=b; printf %s 'a\\c'\t\"$x\"\n#100%% \u{e4}\nexit 3");
    assert_eq!(said, Output { code: 3, text: "a\\cb".into() });
    let text = "'\\0101' \u{e4}\n\"$x\"";
    let said = guest.run(&format!("cat <<'END'\n{text}\nEND\necho error >&2"));
    assert_eq!(said, Output { code: 0, text: format!("{text}\nerror\n") });
    assert_eq!(guest.run("kill -TERM $$").code, 128 + 15);
    assert_eq!(guest.run("missing-program 2>/dev/null").code, 127);
    assert_eq!(guest.run("cat").text, "");
}

#[test]
fn the_program_keeps_the_end_of_a_long_output() {
    let text = Guest::start().run("head -c 1500000 /dev/zero | tr '\\0' a; printf end").text;
    assert_eq!(text.len(), 1_000_000);
    assert!(text.starts_with('a') && text.ends_with("aend"));
}

#[test]
fn the_program_runs_commands_beside_each_other() {
    let guest = Guest::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let path = path.display();
    guest.run(&format!("mkfifo {path}"));
    let reader = guest.agent.start(&format!("cat {path}")).unwrap();
    guest.run(&format!("echo word >{path}"));
    assert_eq!(reader.wait(LIMIT).unwrap().text, "word\n");
}

#[test]
fn a_stopped_command_is_gone_with_all_that_it_started() {
    let guest = Guest::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers");
    let path = path.display();
    let job = guest.agent.start(&format!("sleep 1000 & echo $$ $! >{path}; wait")).unwrap();
    let numbers = guest.run(&format!("until [ -s {path} ]; do sleep 0.01; done; cat {path}")).text;
    assert_eq!(job.stop(LIMIT).unwrap().code, 128 + 9);
    for number in numbers.split_whitespace() {
        // An orphan that is dead may wait for its new parent.
        let state = format!("! grep -qs '^State:.*[RSD]' /proc/{number}/status");
        assert_eq!(guest.run(&state).code, 0, "{number} is there");
    }
    // One that has ended already is no matter.
    let job = guest.agent.start("true").unwrap();
    guest.run("true");
    assert!(job.stop(LIMIT).is_ok());
}

#[test]
fn the_program_ignores_lines_of_another_boot_and_lines_that_are_none() {
    let guest = Guest::start();
    for line in ["other run 7 echo\n", "run\n", "\n", "other stop 7\n", "\u{e4} \u{0} 7 8 9\n"] {
        guest.agent.send(line).unwrap();
    }
    assert_eq!(guest.run("echo here").text, "here\n");
}

#[test]
fn both_ends_mean_the_same() {
    let command = "echo 'a\\b'\t\"$x\"\n#100%% \u{e4}\\c";
    assert_eq!(program::unescaped(&escaped(command)).as_deref(), Some(command));
    for text in ["\\", "\\0", "\\012", "\\0999", "\\1", "\\0777", "\\0344"] {
        assert_eq!(program::unescaped(text), None, "{text}");
    }
    for length in 0..10 {
        let bytes: Vec<u8> = (250..=255).chain(0..length).collect();
        assert_eq!(unbase64(&base64(&bytes)).unwrap(), bytes);
    }
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
    // The carrier of the channel reports that its guest is gone, perhaps late.
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
