//! The order in which people expect names with numbers: `p2` before `p10`.

use std::cmp::Ordering;

/// Compares names piece by piece: runs of digits as numbers, everything else by character.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while !left.is_empty() && !right.is_empty() {
        let (first, second) = (piece(left), piece(right));
        let order = match (number(first), number(second)) {
            (Some(first), Some(second)) => {
                first.len().cmp(&second.len()).then_with(|| first.cmp(second))
            }
            _ => first.cmp(second),
        };
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = (&left[first.len()..], &right[second.len()..]);
    }
    // Names that differ only in zeros before a number are also ordered.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// The first character, or all digits that a text begins with.
fn piece(text: &str) -> &str {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let first = text.chars().next().map_or(0, char::len_utf8);
    &text[..digits.max(first)]
}

/// The digits without zeros before them.
fn number(piece: &str) -> Option<&str> {
    piece.starts_with(|c: char| c.is_ascii_digit()).then(|| piece.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let mut names = ["p10", "p2", "p29", "p3", "b", "p", "p2a", "p02", "vif5.10", "vif5.9"];
        names.sort_by(|a, b| compare(a, b));
        assert_eq!(names, ["b", "p", "p02", "p2", "p2a", "p3", "p10", "p29", "vif5.9", "vif5.10"]);
    }
}
