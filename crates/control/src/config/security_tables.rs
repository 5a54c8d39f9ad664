//! `[[address-group]]` and `[[security-group]]` tables as written.

use std::path::PathBuf;

use frame::Prefix;
use switch::filter::Rule;

use super::key_table::key_table;
use super::port_table::Name;
use super::source::VALUE;
use super::value::{FromText, Item, List, TableName, Text};

key_table! {
    /// An `[[address-group]]` table.
    AddressGroupTable {
        "name" name: Text<Name>,
        "addresses" addresses: List<Text<Prefix>>,
        "file" file: Text<MemberFile>,
    }
}

impl TableName for AddressGroupTable {
    const EXPECTED: &'static str = "a list of tables; write [[address-group]]";
}

key_table! {
    /// A `[[security-group]]` table.
    SecurityGroupTable {
        "name" name: Text<Name>,
        "rules" rules: List<Text<Rule>>,
    }
}

impl TableName for SecurityGroupTable {
    const EXPECTED: &'static str = "a list of tables; write [[security-group]]";
}

/// The path of a file with addresses.
#[derive(Clone, Debug)]
pub(super) struct MemberFile(pub PathBuf);

impl FromText for MemberFile {
    fn right() -> String {
        r#"the path of a file with an address or network in each line, like "admins.txt""#
            .to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "" => Err(format!("{VALUE} is empty; give {}", Self::right())),
            path => Ok(MemberFile(path.into())),
        }
    }
}

impl FromText for Rule {
    fn right() -> String {
        r#"a rule, like "in tcp 22,80 from 10.0.0.0/8" or "out any""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error| format!("{VALUE} is no rule: {error}"))
    }
}

impl Item for Text<Rule> {
    fn right_list() -> String {
        r#"a list of rules, like ["in tcp 22,80 from 10.0.0.0/8", "out any"]"#.to_owned()
    }
}

impl Item for Text<Name> {
    fn right_list() -> String {
        r#"a list of names, like ["web", "monitored"]"#.to_owned()
    }
}
