//! A store daemon that answers anything.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use hypervisor::Store;
use hypervisor::xen::XenStore;

use crate::input::Input;

/// Reads `data` as what the daemon says to some requests.
pub fn run(data: &[u8]) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let said = data.to_vec();
    let daemon = thread::spawn(move || answer(theirs, &said));
    if let Ok(store) = XenStore::over(ours.into()) {
        let watch = store.watch("/a", Box::new(|path| assert!(path.len() <= 4096)));
        let nodes = store.nodes();
        let _ =
            (nodes.read("/a"), nodes.directory("/a"), nodes.permissions("/a"), nodes.text("/a"));
        let _ = hypervisor::transaction(&store, |nodes| nodes.write("/a", b"b"));
        let _ = (nodes.number::<u32>("/a"), nodes.directory("/b"), nodes.remove("/a"));
        drop(watch);
    }
    // It ends with the connection.
    let _ = daemon.join();
}

/// Says some pieces after each request, the last of which is an answer; then hangs up. Whoever asks
/// waits as long as nobody does either.
fn answer(mut end: UnixStream, said: &[u8]) {
    let mut input = Input::new(said);
    let mut asked = [0; 16];
    while !input.is_empty() && end.read_exact(&mut asked).is_ok() {
        let word = |n: usize| {
            asked.get(4 * n..4 * n + 4).and_then(|word| word.try_into().ok()).unwrap_or_default()
        };
        let mut rest = vec![0; u32::from_ne_bytes(word(3)).min(4096) as usize];
        if end.read_exact(&mut rest).is_err() {
            return;
        }
        for left in (0..1 + input.u8() % 3).rev() {
            let (choice, len) = (input.u8(), usize::from(input.u8()));
            let body = input.take(len);
            let kind = match choice {
                0..32 if left > 0 => input.u32() % 24,
                32..96 if left > 0 => 15,
                0..48 => 16,
                _ => u32::from_ne_bytes(word(0)),
            };
            let size = if choice == 255 { input.u32() } else { body.len() as u32 };
            let header = [kind.to_ne_bytes(), word(1), word(2), size.to_ne_bytes()].concat();
            if end.write_all(&[&header, body].concat()).is_err() || size as usize != body.len() {
                return;
            }
        }
    }
}
