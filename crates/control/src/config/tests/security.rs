//! Address groups and security groups.

use serde_json::json;

use super::{guest, parse, refused};
use crate::config::{Config, Host, Known, PortSettings, port_changes};
use crate::config_file::ConfigFile;
use crate::kind::Kind;

const GROUPS: &str = r#"
[[address-group]]
name = "admins"
addresses = ["192.0.2.0/28", "2001:db8::7"]

[[security-group]]
name = "web"
rules = ["in tcp 80,443", "in tcp 22 from group admins", "out any"]

[[port]]
name = "a"
kind = "vhost-user"
socket = "/a"
security-groups = ["web"]
"#;

fn rules(config: &Config) -> Vec<String> {
    let rules = config.security.rules(&config.ports[0].settings.security_groups).unwrap();
    rules.iter().map(|(group, rule)| format!("{group}: {rule}")).collect()
}

#[test]
fn groups_are_tables_and_ports_name_them() {
    let config = parse(GROUPS).unwrap();
    let want = ["web: in tcp 80,443", "web: in tcp 22 from group admins", "web: out any"];
    assert_eq!(rules(&config), want);
    assert!(config.security.rules(&[]).is_none(), "a port in no group has no filter");
    let unknown = config.security.rules(&["gone".to_owned()]).unwrap();
    assert_eq!(unknown.iter().count(), 0, "a group that is gone allows nothing");
}

#[test]
fn mistakes_in_groups_are_named_with_their_place() {
    for (before, after, problem) in [
        (
            "in tcp 80,443",
            "in tpc 80",
            "security-group[0].rules: \"in tpc 80\" is no rule: \"tpc\" is no protocol",
        ),
        ("group admins", "group users", "there is no address group \"users\""),
        ("192.0.2.0/28", "192.0.2.1/28", "address-group[0].addresses"),
        (
            "[\"web\"]",
            "[\"wed\"]",
            "port[0].security-groups: \"wed\" is not a security group; known here: web",
        ),
        ("[\"web\"]", "[]", "the list is empty"),
        ("name = \"web\"", "", "security-group[0].name"),
    ] {
        let error = parse(&GROUPS.replace(before, after)).unwrap_err();
        assert!(error.contains("ringmain.toml:") && error.contains(problem), "{error}");
    }
    let twice = format!("{GROUPS}[[security-group]]\nname = \"web\"\nrules = []\n");
    assert!(parse(&twice).unwrap_err().contains("the list is empty"));
    let empty = "[[address-group]]\nname = \"x\"\n";
    assert!(parse(empty).unwrap_err().contains("addresses, or a file with some"));
    refused(
        &guest("security-groups = [\"web\"]"),
        "ringmain.toml:5: port[0].security-groups: \"web\" is not a security group; there are none",
    );
}

#[test]
fn groups_of_a_port_change_in_service() {
    let settings = PortSettings::default();
    let groups = ["web".to_owned(), "db".to_owned()];
    let known = Known { security_groups: Some(&groups), ..Known::default() };
    let change = |words: &str| {
        let object = port_changes(&[words.to_owned()]).unwrap();
        settings.changed(Kind::Tap, &object, known).map_err(|error| error.to_string())
    };
    assert_eq!(change("security-groups=web,db").unwrap().security_groups, ["web", "db"]);
    assert!(change("security-groups=none").unwrap().security_groups.is_empty());
    assert!(change("security-groups=ssh").unwrap_err().contains("known here: web, db"));
    let object = json!({ "security_groups": ["web"] });
    let object = object.as_object().unwrap();
    assert_eq!(settings.changed(Kind::Xen, object, known).unwrap().security_groups, ["web"]);
}

#[test]
fn members_of_an_address_group_can_be_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        GROUPS.replace("addresses = [\"192.0.2.0/28\", \"2001:db8::7\"]", "file = \"admins.txt\"");
    let path = folder.path().join("ringmain.toml");
    let file = ConfigFile::new(&path, None, Host { cpus: vec![0] });
    let parse = |members: &str| {
        std::fs::write(folder.path().join("admins.txt"), members).unwrap();
        file.parse(&text, &Default::default()).map_err(|error| error.to_string())
    };
    let config = parse("# who may log in\n192.0.2.1  # the bastion\n\n2001:db8::/64\n").unwrap();
    assert_eq!(config.security.address_groups[0].members.len(), 2);
    let error = parse("192.0.2.1\nhere\n192.0.2.1/8\n").unwrap_err();
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines[0].ends_with("admins.txt:2: \"here\": not an IP address or prefix"), "{error}");
    assert!(lines[1].contains("admins.txt:3: \"192.0.2.1/8\": either an address or a network"));
    std::fs::remove_file(folder.path().join("admins.txt")).unwrap();
    let error = file.parse(&text, &Default::default()).unwrap_err().to_string();
    assert!(error.contains("admins.txt: cannot be read: No such file"), "{error}");
}
