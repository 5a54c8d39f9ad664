//! The suite: a backend without a switch, that looks at everything which a backend needs.

pub mod copy;
pub mod event;
pub mod front;
pub mod gone;
pub mod map;
pub mod store;
pub mod vif;

use std::time::{Duration, Instant};

use hypervisor::{DomId, Hypervisor};
use vif::Vif;

/// How long is waited for what has to happen: real guests boot meanwhile, perhaps in software and
/// beside others.
pub const TIMEOUT: Duration = Duration::from_secs(240);

/// Polls until `ready` gives something.
pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All that is tried on one host.
pub struct Suite {
    host: Hypervisor,
    /// Destroys a domain.
    destroy: Box<dyn Fn(DomId)>,
}

impl Suite {
    pub fn new(host: Hypervisor, destroy: impl Fn(DomId) + 'static) -> Self {
        Self { host, destroy: Box::new(destroy) }
    }

    pub fn run(&self) {
        store::all(&self.host);
        let vifs = Vif::connect_two(&self.host);
        for vif in &vifs {
            map::all(&self.host, vif);
            event::can_be_bound_again(&self.host, vif);
        }
        let ends: Vec<vif::Ends> =
            vifs.iter().map(|vif| vif::Ends::open(&self.host, vif)).collect();
        ends.iter().zip(&vifs).for_each(|(ends, vif)| event::all(&self.host, vif, ends));
        copy::all(&self.host, &vifs, &ends);
        gone::all(&self.host, &vifs[1], ends, &self.destroy);
        println!("suite: all passed on domain {}", self.host.domain);
    }
}
