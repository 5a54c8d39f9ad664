//! Ports that are added by flags and by requests.

use super::*;

#[test]
fn flags_are_read_like_the_file_and_errors_name_the_flag() {
    let base = [("name", json!("a")), ("kind", json!("vhost-user")), ("socket", json!("/a"))];
    let with = |flag, value| flags(&[&base[..], &[(flag, value)]].concat());
    assert_eq!(with("queues", json!(4)).unwrap().queues, Some(4));
    assert_eq!(with("trunk", json!([20, 10])).unwrap().vlan, Vlan::Trunk(vec![10, 20]));
    let cases = [
        ("queues", json!("four"), r#"--queues: "four" is not a number; give 1 to 16"#),
        ("queues", json!(40), "--queues: 40 is out of range; give 1 to 16"),
        (
            "trunk",
            json!([10, "x"]),
            r#"--trunk: "x" is not a number; give a list of VLANs from 1 to 4094, like [10, 20]"#,
        ),
        ("device", json!("rm0"), r#"--device: only a port of kind "tap" has one; leave it out"#),
    ];
    for (flag, value, want) in cases {
        assert_eq!(with(flag, value).unwrap_err(), want);
    }
    let want = r#"--socket: missing; give the path of a socket, like "/run/ringmain/vm.sock""#;
    assert_eq!(flags(&base[..2]).unwrap_err(), want);
}

#[test]
fn a_request_has_all_keys_of_the_file() {
    for port in parse(WHOLE).unwrap().ports {
        assert_eq!(read_back(&port), Ok(port));
    }
}

#[test]
fn requests_are_checked_against_what_is_there() {
    let there = parse(WHOLE).unwrap().ports;
    let ask = |json: &str| {
        let object: serde_json::Map<_, _> = serde_json::from_str(json).unwrap();
        PortSpec::from_request(&object, there.iter(), Known::default(), "/c".as_ref())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        ask(r#"{"name":"vm-a","kind":"tap"}"#),
        "device: missing; give the name of an interface, 1 to 15 letters, digits, \"_\", \".\" or \"-\"\n\
         name: \"vm-a\" belongs to port \"vm-a\" already; give another name"
    );
    assert_eq!(
        ask(r#"{"name":"x","kind":"vhost-user","socket":"/c"}"#),
        r#"socket: "/c" belongs to control.socket already; give another path"#
    );
    assert_eq!(
        ask(r#"{"name":"x","kind":"vhost-user","socket":"/x","queues":"4"}"#),
        r#"queues: "4" is not a number; give 1 to 16"#
    );
    assert_eq!(
        ask(r#"{"name":null,"kind":"xen"}"#),
        r#"name: missing; give 1 to 32 letters, digits, "_", "." or "-""#,
        "null is a value that is not set, as in replies"
    );
    assert_eq!(
        ask(r#"{"name":"x","kind":"xen","interrupt_frames":5}"#),
        "interrupt_frames: the last frames would wait for ever; give interrupt-microseconds, too"
    );
    assert!(
        ask(r#"{"name":"x","kind":"tap","device":"y","a\nb":1}"#).starts_with("a b: unknown key;"),
        "always one line"
    );
}
