//! What the guests run: this executable, in a part.

use super::*;

/// Takes connections, and answers each with how many bytes came and their sum.
pub fn serve(address: &str) {
    let listener = TcpListener::bind((address, 7)).unwrap();
    println!("ready");
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let mut stream = stream.unwrap();
            let (mut count, mut sum, mut bytes) = (0u64, 0u64, vec![0; BLOCK]);
            while let Ok(got @ 1..) = stream.read(&mut bytes) {
                for byte in &bytes[..got] {
                    count += 1;
                    sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
                }
            }
            let _ = stream.write_all(format!("{count} {sum}").as_bytes());
        });
    }
}

pub fn dial(address: &str) -> TcpStream {
    let mut deadline = Deadline::new(LONG);
    loop {
        match TcpStream::connect((address, 7)) {
            Ok(stream) => return stream,
            Err(error) => assert!(!deadline.is_over(), "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends so many blocks over each of so many streams, and compares sums.
pub fn send(address: &str, streams: u64, blocks: u64) {
    std::thread::scope(|scope| {
        for stream in 0..streams {
            scope.spawn(move || {
                let mut to = dial(address);
                let (mut sum, mut state) = (0u64, stream + 1);
                for _ in 0..blocks {
                    let next = |_| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state as u8
                    };
                    let block: Vec<u8> = (0..BLOCK).map(next).collect();
                    sum = block
                        .iter()
                        .fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                    to.write_all(&block).unwrap();
                }
                to.shutdown(std::net::Shutdown::Write).unwrap();
                let mut answer = String::new();
                to.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, format!("{} {sum}", blocks * BLOCK as u64));
            });
        }
    });
    println!("sent");
}

/// Sends blocks over one stream, one every few milliseconds, until its standard input is closed,
/// and compares sums.
pub fn drip(address: &str) {
    let mut to = dial(address);
    println!("ready");
    let last = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()).unwrap());
    let (mut sum, mut count) = (0u64, 0usize);
    while !last.is_finished() {
        let block = [count as u8; 4096];
        sum =
            block.iter().fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        to.write_all(&block).unwrap();
        count += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    to.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    to.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, format!("{} {sum}", count * 4096));
}

/// Tries to get at what another process has: its memory, and its descriptors, which may be others'
/// memory.
pub fn pry(id: &str) {
    let denied = |what: &str, outcome: std::io::Result<()>| {
        let error = outcome.expect_err(what);
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{what} of {id}: {error}");
    };
    let path = |file: &str| format!("/proc/{id}/{file}");
    denied("reading the memory", std::fs::File::open(path("mem")).map(drop));
    denied("writing the memory", std::fs::File::options().write(true).open(path("mem")).map(drop));
    // Their numbers may be seen by the same user, but not what they are.
    for entry in std::fs::read_dir(path("fd")).into_iter().flatten() {
        let descriptor = entry.unwrap().path();
        denied("a descriptor", std::fs::read_link(&descriptor).map(drop));
        denied("a descriptor's file", std::fs::File::open(&descriptor).map(drop));
    }
    let first =
        |mut entries: std::fs::ReadDir| entries.next().map_or(Ok(()), |entry| entry.map(drop));
    denied("the mapped files", std::fs::read_dir(path("map_files")).and_then(first));
    // Nothing that is not its own was left open for it, by those who run it.
    let own = |id: &str| -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        links.map(|link| link.display().to_string()).collect()
    };
    let memories = |links: Vec<String>| links.iter().filter(|link| link.contains("memfd:")).count();
    assert_eq!(memories(own("self")), 0);
    assert!(
        memories(own(&std::os::unix::process::parent_id().to_string())) <= 1,
        "a guest has no memory but its own"
    );
}

pub fn flood(address: &str) {
    let mut to = dial(address);
    println!("ready");
    while to.write_all(&[7; BLOCK]).is_ok() {}
}
