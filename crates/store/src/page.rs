//! Pages of lists.

/// One page of rows, and the cursor of the next page if there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub rows: Vec<T>,
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Makes a page from up to `limit + 1` rows: the extra row shows that there is a next page.
    /// `cursor` returns the cursor of a row.
    pub fn from_rows(mut rows: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Self {
        let has_more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = if has_more {
            rows.last().map(cursor)
        } else {
            None
        };
        Self { rows, next }
    }
}
