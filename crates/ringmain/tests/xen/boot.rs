//! Guests that boot with their vifs, as most do.

use super::host::Scene;
use super::pair::{many_streams, talk};
use super::traffic::{LIMIT, address, address_it};
use lab::guest::Shell;

/// How often eight streams may be tried.
const STREAMS: u32 = 5;

// In a module that comes before others: the guests that it boots then serve all tests.
#[test]
#[ignore = "boots Xen"]
fn two_guests_with_four_queues() {
    let scene = Scene::with_new_guests();
    let [a, b] = scene.guests();
    for (port, guest) in [a, b].into_iter().enumerate() {
        assert_eq!(
            guest.must("ls -d /sys/class/net/eth0/queues/tx-* | wc -l", LIMIT).unwrap(),
            "4\n"
        );
        address_it(guest, "eth0", port);
    }
    talk((a, 0), (b, 1));
    // On a busy machine, streams of three seconds may have carried little.
    let streams = (0..STREAMS).find_map(|_| {
        many_streams(a, b, &address(1));
        let port = scene.port(a, 0).unwrap();
        let used = port.queues.iter().filter(|queue| queue.counts.tx_frames > 100).count();
        // Nothing was segmented on the way: large frames went through whole.
        let are_whole = port.total.tx_bytes / port.total.tx_frames > 1514;
        (used > 1 && are_whole).then_some(port)
    });
    let port = streams.unwrap_or_else(|| panic!("by one queue, or cut: {:#?}", scene.stats()));
    assert_eq!((port.queue_pairs, port.queues.len()), (4, 4), "{port:#?}");
    scene.check_balance();
}
