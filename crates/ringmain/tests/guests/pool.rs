//! Labs with two ordinary guests, which tests use one after the other: booting guests takes longer
//! than most tests.

use super::lab::{Attach, Lab};
use super::traffic::{LIMIT, clean};
use lab::guest::{Guest, Shell};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::mpsc;

/// A port for a guest of the test's own.
pub const FREE_PORT: usize = 2;
/// Another, which connects to QEMU's socket.
pub const CLIENT_PORT: usize = 3;

/// The pairs of guests that no test uses. There are as many as tests run at the same time.
static POOL: Mutex<Vec<Pooled>> = Mutex::new(Vec::new());

struct Pooled {
    // In this order: guests are attached to the daemon.
    guests: [Guest; 2],
    lab: Lab,
}

/// A lab with ordinary guests on its ports 0 and 1, while a test runs.
///
/// The pair goes back to the pool when the test has passed, so a test leaves these guests as it
/// found them. After a failure, it is given up.
pub struct SharedLab {
    pooled: Option<Pooled>,
}

impl SharedLab {
    pub fn new() -> SharedLab {
        let free = POOL.lock().pop();
        let pooled = free.filter(Pooled::answers).unwrap_or_else(Pooled::boot);
        SharedLab { pooled: Some(pooled) }
    }

    /// The guests on ports 0 and 1.
    pub fn guests(&self) -> [&Guest; 2] {
        self.pooled().guests.each_ref()
    }

    fn pooled(&self) -> &Pooled {
        self.pooled.as_ref().expect("it is there until the drop")
    }
}

impl Deref for SharedLab {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.pooled().lab
    }
}

impl Drop for SharedLab {
    fn drop(&mut self) {
        let Some(pooled) = self.pooled.take() else { return };
        if !std::thread::panicking() && pooled.guests.iter().all(|guest| clean(guest).is_ok()) {
            POOL.lock().push(pooled);
        }
    }
}

impl Pooled {
    fn boot() -> Pooled {
        // Processes end with the thread that started them. These serve several tests, and each
        // test is a thread of its own.
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let lab = Lab::new(&["", "", "", "mode = \"client\""]);
            let guests = lab.boot([0, 1].map(|port| (port, Attach::default())));
            if sender.send(Pooled { guests, lab }).is_ok() {
                loop {
                    std::thread::park();
                }
            }
        });
        receiver.recv().expect("the guests boot")
    }

    fn answers(&self) -> bool {
        self.guests.iter().all(|guest| guest.must("true", LIMIT).is_ok())
    }
}
