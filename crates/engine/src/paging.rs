//! Pages of lists: one way to ask for them, one way to go on.

use oubliette_model::quoted;
use oubliette_store::Page;

use crate::{EngineError, Result};

pub(crate) const DEFAULT: u32 = 100;
pub(crate) const MOST: u32 = 1000;

/// Checks `limit`.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32> {
    match asked.unwrap_or(DEFAULT) {
        limit @ 1..=MOST => Ok(limit),
        other => Err(EngineError::invalid(format!(
            "`limit` is {other}; it must be 1 to {MOST}"
        ))),
    }
}

/// The store's cursor in the one a caller gave back. `list` is the name of the list it came from.
pub(crate) fn open<'a>(cursor: Option<&'a str>, list: &str) -> Result<Option<&'a str>> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    cursor
        .strip_prefix(list)
        .and_then(|rest| rest.strip_prefix(':'))
        .map(Some)
        .ok_or_else(|| {
            EngineError::invalid(format!(
                "{} is not a cursor of this list; use `next_cursor` of the page before",
                quoted(cursor)
            ))
        })
}

/// The rows of a page and the cursor that leads to the next.
pub(crate) fn close<T>(page: Page<T>, list: &str) -> (Vec<T>, Option<String>) {
    (
        page.rows,
        page.next.map(|cursor| format!("{list}:{cursor}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_round_and_a_foreign_one_is_refused() {
        let page = Page {
            rows: vec![1],
            next: Some("b".to_owned()),
        };
        let (_, cursor) = close(page, "projects");
        assert_eq!(open(cursor.as_deref(), "projects").unwrap(), Some("b"));
        assert!(open(cursor.as_deref(), "tokens").is_err());
        assert!(open(Some("junk"), "projects").is_err());
        assert_eq!(open(None, "projects").unwrap(), None);
    }

    #[test]
    fn limits_are_bounded() {
        assert_eq!(limit(None).unwrap(), 100);
        assert!(limit(Some(0)).is_err() && limit(Some(1001)).is_err());
    }
}
