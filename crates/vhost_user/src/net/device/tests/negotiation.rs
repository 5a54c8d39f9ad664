//! What is offered, acknowledged and declined.

use super::*;

#[test]
fn what_is_offered_is_told() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(1, &[], vec![]), Ok(Some(feature::all_offered().0)));
    assert_eq!(bench.ask(15, &[], vec![]), Ok(Some(feature::ALL_PROTOCOL)));
    assert_eq!(bench.ask(17, &[], vec![]), Ok(Some(2)));
    assert_eq!(bench.ask(36, &[], vec![]), Ok(Some(MAX_REGIONS as u64)));
}

#[test]
fn only_what_is_offered_can_be_used() {
    let mut bench = Bench::new();
    let in_order = 1u64 << 35;
    assert_eq!(
        bench.refusal(2, &(MODERN | in_order).to_le_bytes(), vec![]),
        "SET_FEATURES with 0x800000000, which is not offered"
    );
    assert_eq!(
        bench.refusal(16, &words(&[1 << 9]), vec![]),
        "SET_PROTOCOL_FEATURES with 0x200, which is not offered"
    );
}

#[test]
fn acknowledgements_are_sent_when_they_were_agreed_on() {
    let mut bench = Bench::new();
    assert!(bench.send(3, NEED_REPLY, &[], vec![]).reply.is_none());
    bench.do_it(16, &words(&[protocol::REPLY_ACK]), vec![]);
    assert!(bench.send(3, 0, &[], vec![]).reply.is_none());
    assert_eq!(bench.send(3, NEED_REPLY, &[], vec![]).reply, Some(Reply::Number(0).encode(3)));
    // A question is answered once.
    assert_eq!(bench.send(17, NEED_REPLY, &[], vec![]).reply, Some(Reply::Number(2).encode(17)));
}

#[test]
fn what_can_be_declined_is_declined_and_the_rest_ends_the_connection() {
    let mut bench = Bench::new();
    assert!(bench.send(6, NEED_REPLY, &words(&[0, 0]), vec![]).closes);
    bench.do_it(16, &words(&[protocol::REPLY_ACK]), vec![]);
    for (code, payload) in [
        (28, words(&[0, 0])),
        (99, vec![]),
        (19, words(&[1])),
        (20, words(&[9001])),
        (20, words(&[60])),
    ] {
        let answer = bench.send(code, NEED_REPLY, &payload, vec![]);
        assert_eq!(answer.reply, Some(Reply::Number(1).encode(code)), "{code}");
        assert!(answer.error.is_some() && !answer.closes, "{code}");
        assert!(bench.send(code, 0, &payload, vec![]).closes, "{code}");
    }
    let answer = bench.send(8, NEED_REPLY, &state(9, 16), vec![]);
    assert_eq!(answer.reply, Some(Reply::Number(1).encode(8)));
    assert!(answer.closes);
}

#[test]
fn an_mtu_is_held_against_the_ports() {
    let mut bench = Bench::new();
    bench.do_it(20, &words(&[9000]), vec![]);
    assert_eq!(
        bench.refusal(20, &words(&[9001]), vec![]),
        "MTU 9001, the port is configured for at most 9000"
    );
}
