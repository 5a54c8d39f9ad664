//! Rates that the toolstack changes while vifs are in service.

use crate::front::netfront::Netfront;
use crate::front::{FrontSpec, Host, frame, introduce, wait};

#[test]
fn a_rate_in_the_store_is_followed_in_service() {
    let host = Host::new();
    let spec = FrontSpec { queues: 1, ..FrontSpec::default() };
    let a = Netfront::connected(&host, 1, spec.clone());
    let b = Netfront::connected(&host, 2, spec);
    introduce((&a, 1), (&b, 2));
    let port = host.vif(&a).unwrap().port.unwrap();
    let limited = || host.fabric.counters(port)[0].tx_limited.get();
    let (mut sent, mut came) = (0, 0);
    for _ in 0..50 {
        a.queues[0].send(&frame(1, 2, 4000, sent), 0, None);
        sent += 1;
        came += b.expect(1).len();
    }
    assert_eq!(limited(), 0, "there was no rate");

    // An hour for 5000 bytes, behind the least burst: 33 frames.
    a.put_back("rate", "5000,3600000000");
    wait(|| {
        a.queues[0].send(&frame(1, 2, 4000, sent), 0, None);
        sent += 1;
        came += b.received().len();
        limited() > 0
    });
    assert!(came < sent as usize, "the frame that waits cannot have come");

    a.put_back("rate", "5000000,1000");
    wait(|| {
        came += b.received().len();
        came == sent as usize
    });
}
