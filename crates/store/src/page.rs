//! A page of a list.

/// Some rows, and where the next page begins if there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub rows: Vec<T>,
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Makes a page of rows that were read with one more than `limit`; `key` is a row's cursor.
    pub fn cut(mut rows: Vec<T>, limit: u32, key: impl Fn(&T) -> String) -> Self {
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = if more { rows.last().map(key) } else { None };
        Self { rows, next }
    }
}
