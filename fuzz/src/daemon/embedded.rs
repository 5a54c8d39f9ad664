//! Two hostile guests of an embedded hypervisor.

use super::guest::HostileGuest;
use super::site::Site;
use crate::input::Input;

/// Most operations of one input.
const STEPS: usize = 100;

/// Reads `data` as operations of both.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut site = Site::get();
    // Guests of the second port copy for themselves.
    let port = if input.u8() & 1 == 0 { "guests" } else { "copying" };
    let socket = site.folder().join(port);
    let mut guests = [1, 2].map(|number| HostileGuest::connect(&socket, number));
    for guest in &mut guests {
        match input.u8() {
            0..32 => {}
            32..64 => guest.hello(&mut input),
            choice => guest.introduce(choice & 1 == 0),
        }
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let choice = input.u8();
        let who = usize::from(choice >> 7);
        let neighbour = guests[1 - who].domain();
        step(&mut guests[who], choice & 0x7f, neighbour, &mut input);
    }
    guests.iter_mut().for_each(HostileGuest::await_answer);
    site.is_served();
    drop(guests);
    site.awaits_no_guest();
    site.is_clean();
}

fn step(guest: &mut HostileGuest, choice: u8, neighbour: u16, input: &mut Input<'_>) {
    match choice {
        0..8 => guest.request(input),
        8..11 => guest.babble(input),
        11 => guest.hello(input),
        12..22 => guest.ready(input),
        22..48 => guest.store(neighbour, input),
        48..51 => guest.babble_to_store(input),
        51..64 => guest.grant(neighbour, input),
        64..82 => guest.ask(input),
        82..94 => guest.publish(input),
        94..104 => guest.scribble(input),
        104..112 => guest.call(neighbour, input),
        112..120 => guest.notify(input),
        120..122 => guest.await_answer(),
        122..126 => guest.command(input),
        _ => guest.clog(input),
    }
}
