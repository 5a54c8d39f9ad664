//! Tables with only optional keys, which record the place of each value.

use std::ops::Range;

/// A table whose keys and values can be listed.
pub(super) trait KeyTable {
    /// All keys of the table.
    const KEYS: &'static [&'static str];

    /// The keys that were given, and the places of their values.
    fn given(&self) -> Vec<(&'static str, Range<usize>)>;
}

/// Declares a table: a type with a field for each key, and its [`KeyTable`].
macro_rules! key_table {
    ($(#[$doc:meta])* $name:ident { $($key:literal $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(in crate::config) struct $name {
            $(#[serde(rename = $key)] pub $field: Option<toml::Spanned<$type>>,)*
        }

        impl $crate::config::key_table::KeyTable for $name {
            const KEYS: &'static [&'static str] = &[$($key,)*];

            fn given(&self) -> Vec<(&'static str, std::ops::Range<usize>)> {
                let all = [$(($key, self.$field.as_ref().map(toml::Spanned::span)),)*];
                all.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
            }
        }
    };
}

pub(super) use key_table;
