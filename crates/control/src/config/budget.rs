//! The description of one budget: rates that several ports share.

use serde_json::{Map, Value as Json};
use toml::Spanned;

use super::budget_table::BudgetTable;
use super::changed_keys::changed_keys;
use super::error::ConfigErrors;
use super::port_table::Name;
use super::rates::RateLimits;
use super::setting_keys::{Known, apply, budget_keys};
use super::source::{Problems, Source, VALUE};
use super::value::{FromText, Table, Text};

/// The configuration of a budget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BudgetSpec {
    /// The name, unique among budgets.
    pub name: String,
    /// Limits of the budget's ports together.
    pub limits: RateLimits,
}

impl BudgetSpec {
    /// Reads the object of a `budget.add` request: the keys and values of a `[[budget]]` table, in
    /// snake case. `there` has the names of the other budgets.
    ///
    /// # Errors
    /// All problems of the request.
    pub fn from_request(
        object: &Map<String, Json>,
        there: &[String],
    ) -> Result<BudgetSpec, ConfigErrors> {
        let source = Source::request(object);
        let (Table(table), mut problems) = source.read::<Table<BudgetTable>>();
        let budget = read(table, ("", 0), there, &mut problems);
        problems.finish(budget)
    }

    /// The keys that differ from `other`, in snake case: those with another value, and those that
    /// only one of both has.
    pub fn changed_keys(&self, other: &BudgetSpec) -> Vec<String> {
        let shown = |limits: &RateLimits| -> Map<String, Json> {
            let keys = budget_keys().into_iter();
            keys.map(|key| (key.name.replace('-', "_"), (key.show)(limits))).collect()
        };
        changed_keys(&shown(&self.limits), &shown(&other.limits))
    }
}

/// Makes a description of a table at this path and byte offset. `None` if it has no name.
pub(super) fn read(
    mut table: BudgetTable,
    (path, at): (&str, usize),
    there: &[String],
    problems: &mut Problems<'_>,
) -> Option<BudgetSpec> {
    let name = table.name.take();
    match &name {
        None => problems.add_missing(path, "name", at, &Name::right()),
        Some(name) if there.contains(&name.get_ref().0.0) => {
            let problem = format!("there is a budget {VALUE} already; give another name");
            problems.add(path, "name", &name.span(), problem);
        }
        Some(_) => {}
    }
    let mut limits = RateLimits::default();
    apply(&budget_keys(), (&mut table, path), &mut limits, Known::default(), problems);
    let Text(Name(name)) = name.map(Spanned::into_inner)?;
    Some(BudgetSpec { name, limits })
}
