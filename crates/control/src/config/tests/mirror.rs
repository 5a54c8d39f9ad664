//! The key `mirror`: which ports can be mirrors.

use super::{parse, refused};

fn file(mirror: &str) -> String {
    format!(
        "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/a\"\nmirror = {mirror:?}\n\
         [[port]]\nname = \"vifs\"\nkind = \"xen\"\nmirror = \"probe\"\n\
         [[port]]\nname = \"probe\"\nkind = \"tap\"\ndevice = \"rm0\"\n"
    )
}

#[test]
fn a_mirror_is_another_port_wherever_it_is_in_the_file() {
    let config = parse(&file("probe")).unwrap();
    let mirrors: Vec<_> = config.ports.iter().map(|port| port.settings.mirror.clone()).collect();
    assert_eq!(mirrors, [Some("probe".to_owned()), Some("probe".to_owned()), None]);
}

#[test]
fn neither_the_port_itself_nor_one_that_stands_for_others_can_be_a_mirror() {
    for mirror in ["a", "vifs", "prob"] {
        let want = format!(
            "ringmain.toml:5: port[0].mirror: {mirror:?} is not another port of kind \
             \"vhost-user\" or \"tap\"; known here: probe"
        );
        refused(&file(mirror), &want);
    }
}
