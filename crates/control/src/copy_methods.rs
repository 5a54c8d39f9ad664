//! How long copies are made: by the methods that were the fastest when the process started.

use std::sync::Once;
use std::thread::Builder;

use ring::copy::measure::{Measured, choose};
use ring::copy::method::{Method, SizeClass, method};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use sandbox::Role;
use tracing::{info, warn};

use crate::api::CopyMethod;

/// Rounds of the measurement, which take 18 ms of CPU time together.
const ROUNDS: u32 = 3;

/// The lowest priority: the thread gives way to all others.
const NICE: i32 = 19;

/// Measures, and then uses the fastest methods. A thread does so: nothing waits for it, and until
/// it has ended all copies are the C library's. Later calls in the same process do nothing.
pub fn choose_in_background() {
    static MEASURED: Once = Once::new();
    MEASURED.call_once(|| {
        let thread = Builder::new().name("rm-copy".into()).spawn(|| {
            // A worker that has to wait for its CPU takes the host for short of CPU time, and
            // ceases to poll.
            let _ = setpriority_process(Some(gettid()), NICE);
            sandbox::enter_thread(Role::Task);
            choose(ROUNDS).iter().for_each(log);
        });
        if let Err(error) = thread {
            warn!(%error, "methods of copying are not measured");
        }
    });
}

/// Logs the method that was chosen for a size class, and how it compares with the C library's.
fn log(measured: &Measured) {
    let best = measured.best();
    let (times, library) = (measured.of(best), measured.of(Method::Library));
    info!(
        from = measured.class.least(),
        method = best.name(),
        cold_ns = times.cold,
        warm_ns = times.warm,
        memmove_cold_ns = library.cold,
        memmove_warm_ns = library.warm,
        "copies of this many bytes and more"
    );
}

/// The methods in use.
pub fn report() -> Vec<CopyMethod> {
    let report =
        |class: SizeClass| CopyMethod { from: class.least(), method: method(class).name().into() };
    SizeClass::ALL.map(report).into()
}
