//! The types of single values: texts, numbers and amounts with a meaning, and lists of them. Each
//! type describes correct values in its errors.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use toml::Spanned;

use super::source::VALUE;

/// Something that is written as a string.
pub(super) trait FromText: Sized {
    /// A description of good values, for errors.
    fn right() -> String;

    /// Reads the text, or describes the problem. [`VALUE`] stands for the value in that
    /// description.
    fn from_text(text: &str) -> Result<Self, String>;
}

/// A value that is written as a string.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Text<T>(pub T);

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromText> Visitor<'_> for TextVisitor<T> {
    type Value = Text<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string; give {}", T::right())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
        T::from_text(text).map(Text).map_err(E::custom)
    }
}

/// An amount with a unit: a string, or a number where the unit may be left out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Amount<T>(pub T);

impl<'de, T: FromText> Deserialize<'de> for Amount<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor(PhantomData))
    }
}

struct AmountVisitor<T>(PhantomData<T>);

impl<T: FromText> Visitor<'_> for AmountVisitor<T> {
    type Value = Amount<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an amount; give {}", T::right())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Amount<T>, E> {
        T::from_text(text).map(Amount).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Amount<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Amount<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Amount<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Amount<T>, E> {
        self.visit_str(&number.to_string())
    }
}

/// The range of a number.
pub(super) trait Limits {
    /// The numbers that are allowed.
    const RANGE: RangeInclusive<u16>;

    /// A description of good values, for errors.
    fn right() -> String {
        format!("{} to {}", Self::RANGE.start(), Self::RANGE.end())
    }
}

/// A whole number within limits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Number<L>(pub u16, PhantomData<L>);

impl<'de, L: Limits> Deserialize<'de> for Number<L> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor(PhantomData))
    }
}

struct NumberVisitor<L>(PhantomData<L>);

impl<L: Limits> Visitor<'_> for NumberVisitor<L> {
    type Value = Number<L>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number; give {}", L::right())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Number<L>, E> {
        self.visit_i128(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Number<L>, E> {
        self.visit_i128(number.into())
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Number<L>, E> {
        match u16::try_from(number) {
            Ok(number) if L::RANGE.contains(&number) => Ok(Number(number, PhantomData)),
            _ => Err(E::custom(format_args!("{VALUE} is out of range; give {}", L::right()))),
        }
    }
}

/// A list of at least one value, each with its place.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct List<T>(pub Vec<Spanned<T>>);

/// A type that may be in a list.
pub(super) trait Item {
    /// A description of good lists, for errors.
    fn right_list() -> String;
}

impl<L: Limits> Item for Number<L> {
    fn right_list() -> String {
        L::right()
    }
}

impl<'de, T: Item + Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Item + Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list; give {}", T::right_list())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        if items.is_empty() {
            let right = T::right_list();
            return Err(A::Error::custom(format_args!("the list is empty; give {right}")));
        }
        Ok(List(items))
    }
}

/// The name of a table in errors.
pub(super) trait TableName {
    /// A table, and how to write one.
    const EXPECTED: &'static str;
}

/// A table. Serde by itself would also accept a list of values.
#[derive(Clone, Default, Debug)]
pub(super) struct Table<T>(pub T);

impl<'de, T: DeserializeOwned + TableName> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor(PhantomData))
    }
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned + TableName> Visitor<'de> for TableVisitor<T> {
    type Value = Table<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Table<T>, A::Error> {
        T::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Table)
    }
}

/// A list of tables, as in `[[port]]`, each with its place.
#[derive(Clone, Debug)]
pub(super) struct Tables<T>(pub Vec<Spanned<Table<T>>>);

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Tables(Vec::new())
    }
}

impl<'de, T: DeserializeOwned + TableName> Deserialize<'de> for Tables<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(TablesVisitor(PhantomData))
    }
}

struct TablesVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned + TableName> Visitor<'de> for TablesVisitor<T> {
    type Value = Tables<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tables<T>, A::Error> {
        let mut tables = Vec::new();
        while let Some(table) = seq.next_element()? {
            tables.push(table);
        }
        Ok(Tables(tables))
    }
}
