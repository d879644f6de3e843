//! The generated documentation. Must never invent: every page is a view of the code.

/// Writes the generated pages, or with `check` only compares them with what is there.
pub(crate) fn run(check: bool) -> Result<(), String> {
    let chore = if check { "docs --check" } else { "docs" };
    Err(format!(
        "`cargo xtask {chore}` is not written yet, so no page was written or compared."
    ))
}
