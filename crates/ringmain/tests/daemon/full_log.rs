//! A daemon whose log nobody reads.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::daemon::Daemon;
use lab::isolation::config;
use lab::isolation::innocents::{Innocents, PORTS};
use lab::isolation::neighbour;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// How long something may take that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes that the pipe of the log takes: less than the lines of one port that are written at once.
const PIPE: usize = 4096;

/// Connections that each cause some lines.
const CONNECTIONS: u64 = 150;

/// Frames a second.
const RATE: u64 = 1000;

fn connections(daemon: &Daemon, name: &str) -> u64 {
    let stats = daemon.stats().unwrap();
    stats.ports.iter().find(|port| port.name == name).unwrap().connections
}

fn serves(sockets: &[PathBuf; 2]) {
    let [a, b] = sockets;
    let mut innocents = Innocents::connect([a, b], None).unwrap();
    let start = Instant::now();
    loop {
        let figures = innocents.run(Some(RATE), Duration::from_millis(50)).unwrap();
        if figures.due > 0 && figures.arrived >= figures.due {
            return;
        }
        assert!(start.elapsed() < LIMIT, "{figures:?}");
    }
}

/// Reads until the text is there.
fn read_until(log: &mut File, text: &str) -> String {
    let (start, mut read) = (Instant::now(), String::new());
    let mut bytes = [0; 4096];
    while !read.contains(text) {
        assert!(start.elapsed() < LIMIT, "{read}");
        match log.read(&mut bytes) {
            Ok(count) => read += &String::from_utf8_lossy(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
    read
}

#[test]
fn ports_are_served_while_nobody_reads_a_flooded_log() {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    fcntl_setpipe_size(&writer, PIPE).unwrap();
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let daemon = Daemon::start_with(
        Path::new(env!("CARGO_BIN_EXE_ringmain")),
        |dir| config::shared(dir, 1, &[]),
        |command| {
            command.stderr(Stdio::from(writer));
        },
    )
    .unwrap();
    let sockets = PORTS.map(|name| daemon.dir().join(name).with_extension("sock"));
    serves(&sockets);

    let hostile = neighbour::name(0);
    let socket = daemon.dir().join(&hostile).with_extension("sock");
    for number in 1..=CONNECTIONS {
        drop(UnixStream::connect(&socket).unwrap());
        let start = Instant::now();
        while connections(&daemon, &hostile) < number {
            assert!(start.elapsed() < LIMIT, "connection {number}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Others connect again, and are served.
    serves(&sockets);

    let mut log = File::from(reader);
    let text = read_until(&mut log, "log lines left out");
    let lines = text.lines().filter(|line| line.contains(&format!("port={hostile}"))).count();
    assert!(lines < 2 * CONNECTIONS as usize, "{lines} lines\n{text}");
    serves(&sockets);
}
