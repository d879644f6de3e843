//! What the environment says must be there.

/// Whether a variable, a list with commas, names something. If it does not, that is said.
///
/// # Panics
/// If it names something that nobody knows.
pub(crate) fn wanted(variable: &str, known: &[&str], name: &str) -> bool {
    let named = std::env::var(variable).unwrap_or_default();
    let named: Vec<&str> = named.split(',').filter(|name| !name.is_empty()).collect();
    for one in &named {
        assert!(
            known.contains(one),
            "{variable} names {one}; known are {}",
            known.join(", ")
        );
    }
    let is_wanted = named.contains(&name);
    if !is_wanted {
        eprintln!("skipped: {variable} does not name {name}");
    }
    is_wanted
}
