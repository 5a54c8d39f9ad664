//! What the guests of a port do beyond Xen's protocol: who copies what they receive, and what they
//! grant of what they send.

use xen::netif::extensions::Extensions;

use super::document::{ConfigError, Fields};

const COPY: &str = r#""backend" or "guest""#;
const GRANTS: &str = r#""page" or "range""#;

/// Reads it. Guests that copy for themselves reach what is granted of a page: so then it has to be
/// ranges.
pub(super) fn read(fields: &mut Fields) -> Result<Extensions, ConfigError> {
    let guest_copy = match fields.text("copy", COPY)? {
        None => false,
        Some((copy, _)) if matches!(&*copy, "backend" | "guest") => copy == "guest",
        Some((_, value)) => {
            return Err(fields.wrong(
                "copy",
                &value,
                format_args!("{value} is not known; give {COPY}"),
            ));
        }
    };
    let ranges = match fields.text("grants", GRANTS)? {
        None => guest_copy,
        Some((grants, _)) if grants == "range" => true,
        Some((grants, value)) if grants == "page" && guest_copy => {
            let problem =
                "guests that copy for themselves would reach whole pages of others; leave it out";
            return Err(fields.wrong("grants", &value, problem));
        }
        Some((grants, _)) if grants == "page" => false,
        Some((_, value)) => {
            return Err(fields.wrong(
                "grants",
                &value,
                format_args!("{value} is not known; give {GRANTS}"),
            ));
        }
    };
    Ok(Extensions { ranges, guest_copy })
}

/// Its keys and values, all of them.
pub fn words(extensions: Extensions) -> [(&'static str, &'static str); 2] {
    let Extensions { ranges, guest_copy } = extensions;
    [
        ("copy", if guest_copy { "guest" } else { "backend" }),
        ("grants", if ranges { "range" } else { "page" }),
    ]
}
