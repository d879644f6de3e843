//! Pages of lists: the `limit` and `cursor` parameters of every list operation.

use oubliette_model::quoted;
use oubliette_store::Page;

use crate::{EngineError, Result};

const DEFAULT_LIMIT: u32 = 100;
pub(crate) const MAX_LIMIT: u32 = 1000;

/// The number of rows to return.
pub(crate) fn check_limit(limit: Option<u32>) -> Result<u32> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        other => Err(EngineError::invalid(format!(
            "`limit` is {other}; it must be 1 to {MAX_LIMIT}"
        ))),
    }
}

/// The store's cursor in the `cursor` of a call. `list` is the name of the list that returned it.
pub(crate) fn decode_cursor<'a>(cursor: Option<&'a str>, list: &str) -> Result<Option<&'a str>> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    cursor
        .strip_prefix(list)
        .and_then(|rest| rest.strip_prefix(':'))
        .map(Some)
        .ok_or_else(|| {
            EngineError::invalid(format!(
                "{} is not a cursor of this list; use `next_cursor` of the previous page",
                quoted(cursor)
            ))
        })
}

/// The rows of a page and `next_cursor`, which leads to the next page.
pub(crate) fn rows_and_cursor<T>(page: Page<T>, list: &str) -> (Vec<T>, Option<String>) {
    (
        page.rows,
        page.next.map(|cursor| format!("{list}:{cursor}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_accepted_by_its_own_list_only() {
        let page = Page {
            rows: vec![1],
            next: Some("b".to_owned()),
        };
        let (_, cursor) = rows_and_cursor(page, "projects");
        assert_eq!(
            decode_cursor(cursor.as_deref(), "projects").unwrap(),
            Some("b")
        );
        assert!(decode_cursor(cursor.as_deref(), "tokens").is_err());
        assert!(decode_cursor(Some("junk"), "projects").is_err());
        assert_eq!(decode_cursor(None, "projects").unwrap(), None);
    }

    #[test]
    fn a_limit_is_1_to_1000_and_100_by_default() {
        assert_eq!(check_limit(None).unwrap(), 100);
        assert!(check_limit(Some(0)).is_err() && check_limit(Some(1001)).is_err());
    }
}
