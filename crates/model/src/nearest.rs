//! Finds the valid name that a mistyped one resembles, for "did you mean" messages.

/// The candidate that is most similar to `given`, if one is similar enough.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A hostile name may be megabytes long, and no candidate is.
    if given.len() > 100 {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(given, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn typing_errors_find_a_name_and_other_texts_none() {
        let names = ["project_id", "workspace_id", "name"];
        assert_eq!(nearest("projct_id", names), Some("project_id"));
        assert_eq!(nearest("projectId", names), Some("project_id"));
        assert_eq!(nearest("zzz", names), None);
        assert_eq!(nearest(&"name".repeat(1000), names), None);
    }
}
