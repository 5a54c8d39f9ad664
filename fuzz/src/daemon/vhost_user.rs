//! Two hostile front-ends at once.

use super::front_end::HostileFrontEnd;
use super::site::Site;
use crate::input::Input;

/// Most operations of one input.
const STEPS: usize = 100;

/// The ports of the hostile front-ends.
const PORTS: [&str; 2] = ["hostile-1", "hostile-2"];

/// Reads `data` as operations of both.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut site = Site::get();
    let queues = 1 + u16::from(input.u8() % 3);
    let mut front_ends = PORTS.map(|name| HostileFrontEnd::new(site.add(name, queues)));
    front_ends.iter_mut().for_each(HostileFrontEnd::connect);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let choice = input.u8();
        let who = usize::from(choice >> 7);
        step(&site, &mut front_ends[who], (choice & 0x7f, PORTS[who], queues), &mut input);
    }
    front_ends.iter().for_each(HostileFrontEnd::await_answer);
    site.is_served();
    // Half of the time, ports are removed while somebody is connected.
    if input.u8() & 1 == 0 {
        front_ends.iter_mut().for_each(HostileFrontEnd::disconnect);
    }
    PORTS.iter().for_each(|name| site.remove(name));
    drop(front_ends);
    site.is_clean();
}

fn step(
    site: &Site,
    front_end: &mut HostileFrontEnd,
    (choice, port, queues): (u8, &str, u16),
    input: &mut Input<'_>,
) {
    match choice {
        0..40 => front_end.speak(input),
        40..44 => front_end.babble(input),
        44..56 => front_end.ready(input),
        56..68 => front_end.scribble(input),
        68..84 => front_end.publish(input),
        84..94 => front_end.compose(input),
        94..106 => front_end.kick(input.u8()),
        106..110 => front_end.resize(input),
        110..113 => front_end.clog(input),
        113..119 => front_end.await_answer(),
        119..121 => front_end.disconnect(),
        121..123 => front_end.connect(),
        _ => {
            // Without the pause that follows a breach of the protocol.
            site.remove(port);
            site.add(port, queues);
            front_end.connect();
        }
    }
}
