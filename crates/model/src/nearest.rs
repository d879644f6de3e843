//! The nearest valid name, for messages that help.

/// The candidate most like `given`, if any is near enough to be meant.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A hostile name may be megabytes long; nothing that long resembles a name of ours.
    if given.len() > 100 {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(given, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn typing_errors_find_their_name_and_noise_finds_none() {
        let names = ["project_id", "workspace_id", "name"];
        assert_eq!(nearest("projct_id", names), Some("project_id"));
        assert_eq!(nearest("projectId", names), Some("project_id"));
        assert_eq!(nearest("zzz", names), None);
        assert_eq!(nearest(&"name".repeat(1000), names), None);
    }
}
